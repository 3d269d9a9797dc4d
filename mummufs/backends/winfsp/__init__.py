"""The backend for Windows: WinFsp over `Overlay`."""
