"""The Linux backend: FUSE by way of pyfuse3, which is imported nowhere else."""
