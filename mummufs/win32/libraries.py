"""kernel32 and advapi32, with the types of the functions that are used of them."""

from __future__ import annotations

import sys

if sys.platform == "win32":
    import ctypes
    from ctypes import wintypes

    def load() -> tuple[ctypes.WinDLL, ctypes.WinDLL]:
        """Both, each keeping the last error of its calls for the thread that made them."""
        kernel = ctypes.WinDLL("kernel32", use_last_error=True)
        security = ctypes.WinDLL("advapi32", use_last_error=True)
        handle, text, dword, flag = wintypes.HANDLE, wintypes.LPCWSTR, wintypes.DWORD, wintypes.BOOL
        pointer = ctypes.c_void_p
        declarations: dict[str, tuple[object, tuple[object, ...]]] = {
            "CreateFileW": (handle, (text, dword, dword, pointer, dword, dword, handle)),
            "CloseHandle": (flag, (handle,)),
            "CreateEventW": (handle, (pointer, flag, flag, text)),
            "ReadFile": (flag, (handle, pointer, dword, pointer, pointer)),
            "WriteFile": (flag, (handle, pointer, dword, pointer, pointer)),
            "GetOverlappedResult": (flag, (handle, pointer, pointer, flag)),
            "FlushFileBuffers": (flag, (handle,)),
            "GetFileInformationByHandleEx": (flag, (handle, ctypes.c_int, pointer, dword)),
            "SetFileInformationByHandle": (flag, (handle, ctypes.c_int, pointer, dword)),
            "LockFileEx": (flag, (handle, dword, dword, dword, dword, pointer)),
            "MoveFileExW": (flag, (text, text, dword)),
            "DeleteFileW": (flag, (text,)),
            "CreateDirectoryW": (flag, (text, pointer)),
            "RemoveDirectoryW": (flag, (text,)),
            "CreateSymbolicLinkW": (ctypes.c_ubyte, (text, text, dword)),
            "CreateHardLinkW": (flag, (text, text, pointer)),
            "GetFinalPathNameByHandleW": (dword, (handle, pointer, dword, dword)),
            "DeviceIoControl": (flag, (handle, dword, pointer, dword, pointer, dword, pointer, pointer)),
            "GetDiskFreeSpaceExW": (flag, (text, pointer, pointer, pointer)),
            "GetVolumePathNameW": (flag, (text, pointer, dword)),
            "GetVolumeInformationW": (flag, (text, pointer, dword, pointer, pointer, pointer, pointer, dword)),
            "GlobalMemoryStatusEx": (flag, (pointer,)),
            "LocalFree": (pointer, (pointer,)),
        }
        for name, (result, arguments) in declarations.items():
            function = getattr(kernel, name)
            function.restype, function.argtypes = result, arguments
        for name, arguments in {
            "ConvertStringSecurityDescriptorToSecurityDescriptorW": (text, dword, pointer, pointer),
            "GetKernelObjectSecurity": (handle, dword, pointer, dword, pointer),
            "SetKernelObjectSecurity": (handle, dword, pointer),
        }.items():
            function = getattr(security, name)
            function.restype, function.argtypes = flag, arguments
        return kernel, security
