"""A FUSE layer that passes a directory tree through and misbehaves on command: what tests put under a mount.

`client.FaultFs` starts it, commands it and always takes it down again.
"""
