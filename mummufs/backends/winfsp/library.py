"""WinFsp's C interface, as far as it is used here: declarations for cffi, and the finding of its DLL.

cffi reads these declarations when the DLL is loaded (its ABI mode), so nothing is compiled, here or where it is
installed. What they say is fixed: WinFsp keeps programs running that were built against its version 1.1, and its own
headers assert the sizes that `check_sizes` asserts once more. Integers are written by their widths, because `long` and
`wchar_t` are not the same everywhere: so the same declarations hold for a DLL of a test on another system.

Bit fields are written as one integer each; their bits are the constants below.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path
from typing import Any

from mummufs.core.errors import MummufsError

DLL_ENV = "MUMMUFS_WINFSP_DLL"
"""Names the DLL to load, whatever is installed."""
VERSION_MIN = 2 << 16
"""WinFsp 2.0, of 2023."""
WHERE = "get it from https://winfsp.dev/rel/ or by `winget install WinFsp.WinFsp`, and mount again"

PARAMS_BYTES = 504
SECTOR_BYTES = 512
SECTORS_PER_UNIT = 8

CASE_PRESERVED_NAMES = 1 << 1
UNICODE_ON_DISK = 1 << 2
PERSISTENT_ACLS = 1 << 3
REPARSE_POINTS = 1 << 4
READ_ONLY_VOLUME = 1 << 9
POST_CLEANUP_WHEN_MODIFIED_ONLY = 1 << 10
PASS_QUERY_DIRECTORY_PATTERN = 1 << 11
ALWAYS_USE_DOUBLE_BUFFERING = 1 << 12
PASS_QUERY_DIRECTORY_FILE_NAME = 1 << 13
FLUSH_AND_PURGE_ON_CLEANUP = 1 << 14
CONTEXT_IS_USER_CONTEXT2 = 1 << 16
ALLOW_OPEN_IN_KERNEL_MODE = 1 << 24
"""Bits of FSP_FSCTL_VOLUME_PARAMS' first flags."""

VOLUME_INFO_TIMEOUT_VALID, DIR_INFO_TIMEOUT_VALID, SECURITY_TIMEOUT_VALID = 1, 2, 4
"""Bits of its second."""

_DECLARATIONS = """
typedef struct FSP_FILE_SYSTEM FSP_FILE_SYSTEM;

typedef struct {
    uint16_t Version, SectorSize, SectorsPerAllocationUnit, MaxComponentLength;
    uint64_t VolumeCreationTime;
    uint32_t VolumeSerialNumber, TransactTimeout, IrpTimeout, IrpCapacity, FileInfoTimeout, Flags;
    char16_t Prefix[192];
    char16_t FileSystemName[16];
    uint32_t AdditionalFlags, VolumeInfoTimeout, DirInfoTimeout, SecurityTimeout, StreamInfoTimeout, EaTimeout;
    uint32_t FsextControlCode, Reserved32[1];
    uint64_t Reserved64[2];
} FSP_FSCTL_VOLUME_PARAMS;

typedef struct {
    uint64_t TotalSize, FreeSize;
    uint16_t VolumeLabelLength;
    char16_t VolumeLabel[32];
} FSP_FSCTL_VOLUME_INFO;

typedef struct {
    uint32_t FileAttributes, ReparseTag;
    uint64_t AllocationSize, FileSize, CreationTime, LastAccessTime, LastWriteTime, ChangeTime, IndexNumber;
    uint32_t HardLinks, EaSize;
} FSP_FSCTL_FILE_INFO;

typedef struct {
    FSP_FSCTL_FILE_INFO FileInfo;
    void *NormalizedName;
    uint16_t NormalizedNameSize;
} FSP_FSCTL_OPEN_FILE_INFO;

typedef struct {
    uint16_t Size;
    FSP_FSCTL_FILE_INFO FileInfo;
    uint8_t Padding[24];
    uint8_t FileName[];
} FSP_FSCTL_DIR_INFO;

typedef struct {
    uint64_t Status;
    uintptr_t Information;
} IO_STATUS_BLOCK;

typedef FSP_FILE_SYSTEM *FS;
typedef char16_t *STR;
typedef FSP_FSCTL_FILE_INFO *INFO;

typedef struct {
    int32_t (*GetVolumeInfo)(FS, FSP_FSCTL_VOLUME_INFO *);
    int32_t (*SetVolumeLabel)(FS, STR, FSP_FSCTL_VOLUME_INFO *);
    int32_t (*GetSecurityByName)(FS, STR, uint32_t *, void *, size_t *);
    int32_t (*Create)(FS, STR, uint32_t, uint32_t, uint32_t, void *, uint64_t, uintptr_t *, INFO);
    int32_t (*Open)(FS, STR, uint32_t, uint32_t, uintptr_t *, INFO);
    int32_t (*Overwrite)(FS, uintptr_t, uint32_t, uint8_t, uint64_t, INFO);
    void (*Cleanup)(FS, uintptr_t, STR, uint32_t);
    void (*Close)(FS, uintptr_t);
    int32_t (*Read)(FS, uintptr_t, void *, uint64_t, uint32_t, uint32_t *);
    int32_t (*Write)(FS, uintptr_t, void *, uint64_t, uint32_t, uint8_t, uint8_t, uint32_t *, INFO);
    int32_t (*Flush)(FS, uintptr_t, INFO);
    int32_t (*GetFileInfo)(FS, uintptr_t, INFO);
    int32_t (*SetBasicInfo)(FS, uintptr_t, uint32_t, uint64_t, uint64_t, uint64_t, uint64_t, INFO);
    int32_t (*SetFileSize)(FS, uintptr_t, uint64_t, uint8_t, INFO);
    int32_t (*CanDelete)(FS, uintptr_t, STR);
    int32_t (*Rename)(FS, uintptr_t, STR, STR, uint8_t);
    int32_t (*GetSecurity)(FS, uintptr_t, void *, size_t *);
    int32_t (*SetSecurity)(FS, uintptr_t, uint32_t, void *);
    int32_t (*ReadDirectory)(FS, uintptr_t, STR, STR, void *, uint32_t, uint32_t *);
    int32_t (*ResolveReparsePoints)(FS, STR, uint32_t, uint8_t, IO_STATUS_BLOCK *, void *, size_t *);
    int32_t (*GetReparsePoint)(FS, uintptr_t, STR, void *, size_t *);
    int32_t (*SetReparsePoint)(FS, uintptr_t, STR, void *, size_t);
    int32_t (*DeleteReparsePoint)(FS, uintptr_t, STR, void *, size_t);
    int32_t (*GetStreamInfo)(FS, uintptr_t, void *, uint32_t, uint32_t *);
    int32_t (*GetDirInfoByName)(FS, uintptr_t, STR, FSP_FSCTL_DIR_INFO *);
    int32_t (*Control)(FS, uintptr_t, uint32_t, void *, uint32_t, void *, uint32_t, uint32_t *);
    int32_t (*SetDelete)(FS, uintptr_t, STR, uint8_t);
    void *CreateEx, *OverwriteEx, *GetEa, *SetEa, *Obsolete0;
    void (*DispatcherStopped)(FS, uint8_t);
    void *Reserved[31];
} FSP_FILE_SYSTEM_INTERFACE;

int32_t FspVersion(uint32_t *);
int32_t FspFileSystemPreflight(STR, STR);
int32_t FspFileSystemCreate(STR, const FSP_FSCTL_VOLUME_PARAMS *, const FSP_FILE_SYSTEM_INTERFACE *, FS *);
void FspFileSystemDelete(FS);
int32_t FspFileSystemSetMountPoint(FS, STR);
void FspFileSystemRemoveMountPoint(FS);
int32_t FspFileSystemStartDispatcher(FS, uint32_t);
void FspFileSystemStopDispatcher(FS);
int32_t FspSetSecurityDescriptor(const void *, uint32_t, const void *, void **);
void FspDeleteSecurityDescriptor(void *, void *);
uint8_t FspFileSystemAddDirInfo(FSP_FSCTL_DIR_INFO *, void *, uint32_t, uint32_t *);
"""

SIZES = {
    "FSP_FSCTL_VOLUME_PARAMS": PARAMS_BYTES,
    "FSP_FSCTL_VOLUME_INFO": 88,
    "FSP_FSCTL_FILE_INFO": 72,
    "FSP_FSCTL_OPEN_FILE_INFO": 88,
    "FSP_FSCTL_DIR_INFO": 104,
    "FSP_FILE_SYSTEM_INTERFACE": 64 * 8,
    "IO_STATUS_BLOCK": 16,
}
"""What the structures take on 64 bits, as WinFsp's headers assert it."""


class WinFspMissingError(MummufsError):
    """WinFsp is not there, or is too old. The message says where to get it."""


class Library:
    """The loaded DLL.

    Attributes:
        ffi: makes and reads C values.
        lib: has the functions.
        version: of WinFsp, major and minor number.
    """

    def __init__(self, path: Path) -> None:
        """Load a DLL.

        Raises:
            WinFspMissingError: it cannot be loaded, or is too old.
        """
        try:
            import cffi
        except ImportError:
            raise WinFspMissingError("the Python package cffi is missing: install it by `pip install cffi`") from None
        self.ffi: Any = cffi.FFI()
        self.ffi.cdef(_DECLARATIONS)
        check_sizes(self.ffi)
        try:
            self.lib: Any = self.ffi.dlopen(os.fspath(path))
        except OSError as error:
            raise WinFspMissingError(f"WinFsp cannot be loaded ({error}): {WHERE}") from None
        found = self.ffi.new("uint32_t *")
        if self.lib.FspVersion(found) != 0 or found[0] < VERSION_MIN:
            version = f"{found[0] >> 16}.{found[0] & 0xFFFF}"
            raise WinFspMissingError(f"WinFsp {version} is installed, and 2.0 is the oldest that will do: {WHERE}")
        self.version = int(found[0]) >> 16, int(found[0]) & 0xFFFF

    def text(self, pointer: Any) -> str:
        """The string at a pointer."""
        return str(self.ffi.string(pointer))

    def new_text(self, text: str) -> Any:
        """A string of C, which lives as long as what is returned."""
        return self.ffi.new("char16_t[]", text)


def check_sizes(ffi: Any) -> None:
    """Raise AssertionError unless the structures are laid out as WinFsp has them."""
    for name, size in SIZES.items():
        assert ffi.sizeof(name) == size, f"{name} takes {ffi.sizeof(name)} bytes in place of {size}"


def find_dll() -> Path:
    """Where WinFsp's DLL is.

    Raises:
        WinFspMissingError: it is not installed.
    """
    named = os.environ.get(DLL_ENV)
    if named:
        return Path(named)
    directory = _installed_in()
    if directory is None:
        raise WinFspMissingError(f"WinFsp is not installed: {WHERE}")
    arch = "a64" if sysconfig.get_platform() == "win-arm64" else "x64"
    return directory / "bin" / f"winfsp-{arch}.dll"


def _installed_in() -> Path | None:
    if sys.platform == "win32":
        import winreg

        access = winreg.KEY_READ | winreg.KEY_WOW64_32KEY
        try:
            with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, r"SOFTWARE\WinFsp", 0, access) as key:
                return Path(str(winreg.QueryValueEx(key, "InstallDir")[0]))
        except OSError:
            pass
    return None
