/*
 * A WinFsp for tests: the DLL's side of its interface, without a driver behind it.
 *
 * It has the functions that the backend calls, and `host_*` for a test, which do with the file system's callbacks what
 * the DLL does when a program opens, reads and lists: security by name first, reparse points resolved, buffers of fixed
 * sizes, threads of its own. The structures are declared here once more, with their bit fields, as WinFsp documents
 * them: a compiler's layout holds the backend's to account.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef uint16_t WCHAR;
typedef int32_t NTSTATUS;

#define SUCCESS 0
#define REPARSE 0x104
#define BUFFER_OVERFLOW ((NTSTATUS)0x80000005)
#define INVALID_PARAMETER ((NTSTATUS)0xC000000D)
#define CANCELLED ((NTSTATUS)0xC0000120)
#define NOT_RESOLVED ((NTSTATUS)0xC0000280)
#define NAME_NOT_FOUND ((NTSTATUS)0xC0000034)
#define PATH_NOT_FOUND ((NTSTATUS)0xC000003A)
#define ATTRIBUTE_REPARSE_POINT 0x400
#define OPTION_OPEN_REPARSE_POINT 0x200000
#define TAG_SYMLINK 0xA000000Cu
#define RESPONSE_BYTES (16 * 1024 - 128)
#define PATH_UNITS 1024

typedef struct {
    uint16_t Version, SectorSize, SectorsPerAllocationUnit, MaxComponentLength;
    uint64_t VolumeCreationTime;
    uint32_t VolumeSerialNumber, TransactTimeout, IrpTimeout, IrpCapacity, FileInfoTimeout;
    uint32_t CaseSensitiveSearch : 1, CasePreservedNames : 1, UnicodeOnDisk : 1, PersistentAcls : 1, ReparsePoints : 1,
        ReparsePointsAccessCheck : 1, NamedStreams : 1, HardLinks : 1, ExtendedAttributes : 1, ReadOnlyVolume : 1,
        PostCleanupWhenModifiedOnly : 1, PassQueryDirectoryPattern : 1, AlwaysUseDoubleBuffering : 1,
        PassQueryDirectoryFileName : 1, FlushAndPurgeOnCleanup : 1, DeviceControl : 1, UmFileContextIsUserContext2 : 1,
        UmFileContextIsFullContext : 1, UmNoReparsePointsDirCheck : 1, UmReservedFlags : 5, AllowOpenInKernelMode : 1,
        CasePreservedExtendedAttributes : 1, WslFeatures : 1, DirectoryMarkerAsNextOffset : 1,
        RejectIrpPriorToTransact0 : 1, SupportsPosixUnlinkRename : 1, PostDispositionWhenNecessaryOnly : 1,
        KmReservedFlags : 1;
    WCHAR Prefix[192];
    WCHAR FileSystemName[16];
    uint32_t VolumeInfoTimeoutValid : 1, DirInfoTimeoutValid : 1, SecurityTimeoutValid : 1, StreamInfoTimeoutValid : 1,
        EaTimeoutValid : 1, KmAdditionalReservedFlags : 27;
    uint32_t VolumeInfoTimeout, DirInfoTimeout, SecurityTimeout, StreamInfoTimeout, EaTimeout;
    uint32_t FsextControlCode;
    uint32_t Reserved32[1];
    uint64_t Reserved64[2];
} Params;
_Static_assert(sizeof(Params) == 504, "volume parameters");

typedef struct {
    uint64_t TotalSize, FreeSize;
    uint16_t VolumeLabelLength;
    WCHAR VolumeLabel[32];
} VolumeInfo;
_Static_assert(sizeof(VolumeInfo) == 88, "volume information");

typedef struct {
    uint32_t FileAttributes, ReparseTag;
    uint64_t AllocationSize, FileSize, CreationTime, LastAccessTime, LastWriteTime, ChangeTime, IndexNumber;
    uint32_t HardLinks, EaSize;
} FileInfo;
_Static_assert(sizeof(FileInfo) == 72, "file information");

typedef struct {
    FileInfo Info;
    WCHAR *NormalizedName;
    uint16_t NormalizedNameSize;
} OpenFileInfo;

typedef struct {
    uint16_t Size;
    FileInfo Info;
    union {
        uint64_t NextOffset;
        uint8_t Padding[24];
    };
    WCHAR FileName[];
} DirInfo;
_Static_assert(sizeof(DirInfo) == 104, "directory information");

typedef struct {
    union {
        NTSTATUS Status;
        void *Pointer;
    };
    uintptr_t Information;
} IoStatus;

typedef struct {
    uint32_t Tag;
    uint16_t DataLength, Reserved, SubstituteOffset, SubstituteLength, PrintOffset, PrintLength;
    uint32_t Flags;
    WCHAR Path[];
} Symlink;

typedef struct FileSystem FileSystem;
typedef struct {
    NTSTATUS (*GetVolumeInfo)(FileSystem *, VolumeInfo *);
    NTSTATUS (*SetVolumeLabel)(FileSystem *, WCHAR *, VolumeInfo *);
    NTSTATUS (*GetSecurityByName)(FileSystem *, WCHAR *, uint32_t *, void *, size_t *);
    NTSTATUS (*Create)(FileSystem *, WCHAR *, uint32_t, uint32_t, uint32_t, void *, uint64_t, void **, FileInfo *);
    NTSTATUS (*Open)(FileSystem *, WCHAR *, uint32_t, uint32_t, void **, FileInfo *);
    NTSTATUS (*Overwrite)(FileSystem *, void *, uint32_t, uint8_t, uint64_t, FileInfo *);
    void (*Cleanup)(FileSystem *, void *, WCHAR *, uint32_t);
    void (*Close)(FileSystem *, void *);
    NTSTATUS (*Read)(FileSystem *, void *, void *, uint64_t, uint32_t, uint32_t *);
    NTSTATUS (*Write)(FileSystem *, void *, void *, uint64_t, uint32_t, uint8_t, uint8_t, uint32_t *, FileInfo *);
    NTSTATUS (*Flush)(FileSystem *, void *, FileInfo *);
    NTSTATUS (*GetFileInfo)(FileSystem *, void *, FileInfo *);
    NTSTATUS (*SetBasicInfo)(FileSystem *, void *, uint32_t, uint64_t, uint64_t, uint64_t, uint64_t, FileInfo *);
    NTSTATUS (*SetFileSize)(FileSystem *, void *, uint64_t, uint8_t, FileInfo *);
    NTSTATUS (*CanDelete)(FileSystem *, void *, WCHAR *);
    NTSTATUS (*Rename)(FileSystem *, void *, WCHAR *, WCHAR *, uint8_t);
    NTSTATUS (*GetSecurity)(FileSystem *, void *, void *, size_t *);
    NTSTATUS (*SetSecurity)(FileSystem *, void *, uint32_t, void *);
    NTSTATUS (*ReadDirectory)(FileSystem *, void *, WCHAR *, WCHAR *, void *, uint32_t, uint32_t *);
    NTSTATUS (*ResolveReparsePoints)(FileSystem *, WCHAR *, uint32_t, uint8_t, IoStatus *, void *, size_t *);
    NTSTATUS (*GetReparsePoint)(FileSystem *, void *, WCHAR *, void *, size_t *);
    NTSTATUS (*SetReparsePoint)(FileSystem *, void *, WCHAR *, void *, size_t);
    NTSTATUS (*DeleteReparsePoint)(FileSystem *, void *, WCHAR *, void *, size_t);
    NTSTATUS (*GetStreamInfo)(FileSystem *, void *, void *, uint32_t, uint32_t *);
    NTSTATUS (*GetDirInfoByName)(FileSystem *, void *, WCHAR *, DirInfo *);
    NTSTATUS (*Control)(FileSystem *, void *, uint32_t, void *, uint32_t, void *, uint32_t, uint32_t *);
    NTSTATUS (*SetDelete)(FileSystem *, void *, WCHAR *, uint8_t);
    void *CreateEx, *OverwriteEx, *GetEa, *SetEa, *Obsolete0;
    void (*DispatcherStopped)(FileSystem *, uint8_t);
    void *Reserved[31];
} Interface;
_Static_assert(sizeof(Interface) == 64 * sizeof(void *), "the interface");

struct FileSystem {
    Params params;
    const Interface *interface;
    WCHAR mountpoint[PATH_UNITS];
    uint32_t threads;
    int dispatching, in_flight;
    pthread_mutex_t lock;
    pthread_cond_t idle;
};

uint32_t host_version = 2 << 16 | 1;
int host_refuse_mountpoint, host_refuse_dispatcher, host_alive;

static size_t length(const WCHAR *text) {
    size_t n = 0;
    while (text[n])
        n++;
    return n;
}

/* ------------------------------------------------------------------ what the backend calls */

NTSTATUS FspVersion(uint32_t *version) {
    *version = host_version;
    return SUCCESS;
}

NTSTATUS FspFileSystemCreate(WCHAR *device, const Params *params, const Interface *interface, FileSystem **made) {
    if (params->Version != sizeof(Params) || length(device) == 0)
        return INVALID_PARAMETER;
    FileSystem *fs = calloc(1, sizeof *fs);
    fs->params = *params;
    fs->interface = interface;
    pthread_mutex_init(&fs->lock, 0);
    pthread_cond_init(&fs->idle, 0);
    host_alive++;
    *made = fs;
    return SUCCESS;
}

void FspFileSystemDelete(FileSystem *fs) {
    host_alive--;
    free(fs);
}

NTSTATUS FspFileSystemPreflight(WCHAR *device, WCHAR *mountpoint) {
    (void)device, (void)mountpoint;
    return SUCCESS;
}

NTSTATUS FspFileSystemSetMountPoint(FileSystem *fs, WCHAR *mountpoint) {
    if (host_refuse_mountpoint)
        return (NTSTATUS)0xC0000035;
    memcpy(fs->mountpoint, mountpoint, (length(mountpoint) + 1) * sizeof(WCHAR));
    return SUCCESS;
}

void FspFileSystemRemoveMountPoint(FileSystem *fs) { fs->mountpoint[0] = 0; }

NTSTATUS FspFileSystemStartDispatcher(FileSystem *fs, uint32_t threads) {
    if (host_refuse_dispatcher)
        return (NTSTATUS)0xC000009A;
    fs->threads = threads;
    fs->dispatching = 1;
    return SUCCESS;
}

void FspFileSystemStopDispatcher(FileSystem *fs) {
    pthread_mutex_lock(&fs->lock);
    fs->dispatching = 0;
    while (fs->in_flight)
        pthread_cond_wait(&fs->idle, &fs->lock);
    pthread_mutex_unlock(&fs->lock);
    if (fs->interface->DispatcherStopped)
        fs->interface->DispatcherStopped(fs, 1);
}

uint8_t FspFileSystemAddDirInfo(DirInfo *line, void *buffer, uint32_t size, uint32_t *done) {
    uint16_t end = 0;
    const void *from = line ? (void *)line : &end;
    uint32_t takes = line ? line->Size : sizeof end, room = line ? (takes + 7) & ~7u : takes;
    if (*done + room > size)
        return 0;
    memcpy((char *)buffer + *done, from, takes);
    *done += room;
    return 1;
}

/* The whole change in the place of the whole descriptor: enough to see that both come through. */
NTSTATUS FspSetSecurityDescriptor(const void *known, uint32_t what, const void *change, void **made) {
    (void)known, (void)what;
    uint32_t size = *(const uint32_t *)((const char *)change - sizeof(uint32_t));
    *made = malloc(size);
    memcpy(*made, change, size);
    return SUCCESS;
}

void FspDeleteSecurityDescriptor(void *made, void *maker) {
    if (maker != (void *)FspSetSecurityDescriptor)
        abort();
    free(made);
}

/* ------------------------------------------------------------------ what a test calls */

static int enter(FileSystem *fs) {
    pthread_mutex_lock(&fs->lock);
    int may = fs->dispatching;
    fs->in_flight += may;
    pthread_mutex_unlock(&fs->lock);
    return may;
}

static NTSTATUS leave(FileSystem *fs, NTSTATUS result) {
    pthread_mutex_lock(&fs->lock);
    if (--fs->in_flight == 0)
        pthread_cond_broadcast(&fs->idle);
    pthread_mutex_unlock(&fs->lock);
    return result;
}

/* A parameter by its name, as the compiler finds it; -1 for an unknown one. */
int64_t host_param(FileSystem *fs, const char *name) {
#define P(field) if (!strcmp(name, #field)) return (int64_t)fs->params.field;
    P(Version) P(SectorSize) P(SectorsPerAllocationUnit) P(MaxComponentLength) P(VolumeSerialNumber) P(IrpTimeout)
    P(IrpCapacity) P(FileInfoTimeout) P(CaseSensitiveSearch) P(CasePreservedNames) P(UnicodeOnDisk) P(PersistentAcls)
    P(ReparsePoints) P(NamedStreams) P(HardLinks) P(ExtendedAttributes) P(ReadOnlyVolume) P(PostCleanupWhenModifiedOnly)
    P(PassQueryDirectoryPattern) P(AlwaysUseDoubleBuffering) P(PassQueryDirectoryFileName) P(FlushAndPurgeOnCleanup)
    P(DeviceControl) P(UmFileContextIsUserContext2) P(UmFileContextIsFullContext) P(UmReservedFlags)
    P(AllowOpenInKernelMode) P(WslFeatures) P(DirectoryMarkerAsNextOffset) P(SupportsPosixUnlinkRename)
    P(VolumeInfoTimeoutValid) P(DirInfoTimeoutValid) P(SecurityTimeoutValid) P(StreamInfoTimeoutValid)
    P(VolumeInfoTimeout) P(DirInfoTimeout) P(SecurityTimeout) P(VolumeCreationTime) P(KmAdditionalReservedFlags)
    P(FileSystemName[0])
    return !strcmp(name, "threads") ? (int64_t)fs->threads : -1;
}

const WCHAR *host_mountpoint(FileSystem *fs) { return fs->mountpoint; }

NTSTATUS host_volume(FileSystem *fs, VolumeInfo *info) {
    if (!enter(fs))
        return CANCELLED;
    return leave(fs, fs->interface->GetVolumeInfo(fs, info));
}

/* The attributes and the security descriptor of a name; asked for again if it is larger than 1 KiB, as the DLL does. */
static NTSTATUS security(FileSystem *fs, WCHAR *name, uint32_t *attributes, void **descriptor, size_t *size) {
    *size = 1024;
    *descriptor = malloc(*size);
    for (;;) {
        NTSTATUS result = fs->interface->GetSecurityByName(fs, name, attributes, *descriptor, size);
        if (result != BUFFER_OVERFLOW)
            return result;
        free(*descriptor);
        *descriptor = malloc(*size);
    }
}

NTSTATUS host_security(FileSystem *fs, const WCHAR *path, uint32_t *attributes, void *out, size_t *size) {
    if (!enter(fs))
        return CANCELLED;
    WCHAR name[PATH_UNITS];
    memcpy(name, path, (length(path) + 1) * sizeof(WCHAR));
    void *descriptor;
    NTSTATUS result = security(fs, name, attributes, &descriptor, size);
    if (result == SUCCESS)
        memcpy(out, descriptor, *size);
    free(descriptor);
    return leave(fs, result);
}

/*
 * Have the reparse points in `path` resolved, of which the first begins at `index`, and put what that makes into its
 * place: SUCCESS to begin anew with it, REPARSE where it is on another volume.
 */
static NTSTATUS resolve(FileSystem *fs, WCHAR *path, uint32_t index, int last) {
    uint8_t response[RESPONSE_BYTES];
    if (index >= length(path) || (index && path[index - 1] != '\\'))
        return INVALID_PARAMETER; /* the index does not lead to a name */
    IoStatus io = {0};
    size_t size = sizeof response;
    NTSTATUS result = fs->interface->ResolveReparsePoints(fs, path, index, (uint8_t)last, &io, response, &size);
    if (result < 0)
        return result;
    Symlink *link = (Symlink *)response;
    if (result != REPARSE || io.Status != REPARSE || io.Information != TAG_SYMLINK || link->Tag != TAG_SYMLINK ||
        size != 8u + link->DataLength || 20u + link->SubstituteOffset + link->SubstituteLength > size)
        return INVALID_PARAMETER;
    memcpy(path, (char *)link->Path + link->SubstituteOffset, link->SubstituteLength);
    path[link->SubstituteLength / 2] = 0;
    if (path[0] != '\\')
        return NOT_RESOLVED;
    return link->Flags & 1 ? SUCCESS : REPARSE;
}

/* Where the last name of a path begins. */
static uint32_t last_name(const WCHAR *path) {
    uint32_t index = (uint32_t)length(path);
    while (index && path[index - 1] != '\\')
        index--;
    return index;
}

/*
 * Open as a program's CreateFile does: symlinks are followed by asking for the resolved path and beginning anew. One
 * that leads to another volume ends the open with REPARSE, and `path` is where it leads then. `path` has PATH_UNITS.
 */
NTSTATUS host_open(FileSystem *fs, WCHAR *path, uint32_t options, void **context, FileInfo *info, WCHAR *normalized) {
    if (!enter(fs))
        return CANCELLED;
    uint8_t response[RESPONSE_BYTES];
    for (int tries = 0; tries < 32; tries++) {
        uint32_t attributes = 0;
        void *descriptor;
        size_t size;
        NTSTATUS result = security(fs, path, &attributes, &descriptor, &size);
        free(descriptor);
        uint32_t index = attributes;
        if (result == SUCCESS && attributes & ATTRIBUTE_REPARSE_POINT && !(options & OPTION_OPEN_REPARSE_POINT)) {
            result = REPARSE;
            index = last_name(path);
        }
        if (result == SUCCESS) {
            OpenFileInfo open = {0};
            open.NormalizedName = (WCHAR *)response;
            open.NormalizedNameSize = RESPONSE_BYTES;
            *context = 0;
            result = fs->interface->Open(fs, path, options, 0x120089, context, &open.Info);
            if (result == SUCCESS) {
                *info = open.Info;
                normalized[0] = 0;
                if (open.NormalizedNameSize <= 2 * PATH_UNITS - 2) {
                    memcpy(normalized, response, open.NormalizedNameSize);
                    normalized[open.NormalizedNameSize / 2] = 0;
                }
            }
        }
        if (result != REPARSE)
            return leave(fs, result);
        result = resolve(fs, path, index, !(options & OPTION_OPEN_REPARSE_POINT));
        if (result != SUCCESS)
            return leave(fs, result);
    }
    return leave(fs, NOT_RESOLVED);
}

void host_close(FileSystem *fs, void *context) {
    if (enter(fs)) {
        fs->interface->Close(fs, context);
        leave(fs, SUCCESS);
    }
}

NTSTATUS host_info(FileSystem *fs, void *context, FileInfo *info) {
    if (!enter(fs))
        return CANCELLED;
    return leave(fs, fs->interface->GetFileInfo(fs, context, info));
}

/* The bytes beyond those asked for have to stay what they are. */
NTSTATUS host_read(FileSystem *fs, void *context, void *out, uint64_t offset, uint32_t size, uint32_t *done) {
    static const char guard[8] = "unspoilt";
    if (!enter(fs))
        return CANCELLED;
    char *buffer = malloc(size + sizeof guard);
    memcpy(buffer + size, guard, sizeof guard);
    *done = 0;
    NTSTATUS result = fs->interface->Read(fs, context, buffer, offset, size, done);
    if (memcmp(buffer + size, guard, sizeof guard) || *done > size)
        abort();
    memcpy(out, buffer, *done);
    free(buffer);
    return leave(fs, result);
}

NTSTATUS host_list(
    FileSystem *fs, void *context, WCHAR *pattern, WCHAR *marker, void *buffer, uint32_t size, uint32_t *done) {
    if (!enter(fs))
        return CANCELLED;
    *done = 0;
    return leave(fs, fs->interface->ReadDirectory(fs, context, pattern, marker, buffer, size, done));
}

NTSTATUS host_entry(FileSystem *fs, void *context, WCHAR *name, DirInfo *line) {
    if (!enter(fs))
        return CANCELLED;
    return leave(fs, fs->interface->GetDirInfoByName(fs, context, name, line));
}

NTSTATUS host_descriptor(FileSystem *fs, void *context, void *buffer, size_t *size) {
    if (!enter(fs))
        return CANCELLED;
    return leave(fs, fs->interface->GetSecurity(fs, context, buffer, size));
}

NTSTATUS host_link(FileSystem *fs, void *context, void *buffer, size_t *size) {
    if (!enter(fs))
        return CANCELLED;
    return leave(fs, fs->interface->GetReparsePoint(fs, context, 0, buffer, size));
}

/* What is known of the directory that `path` is to be made in; symlinks on the way to it are resolved in `path`. */
static NTSTATUS look_at_parent(FileSystem *fs, WCHAR *path) {
    for (int tries = 0; tries < 32; tries++) {
        WCHAR parent[PATH_UNITS];
        uint32_t end = last_name(path), attributes = 0;
        memcpy(parent, path, end * sizeof(WCHAR));
        parent[end > 1 ? end - 1 : end] = 0; /* the root is all of its path */
        void *descriptor;
        size_t size;
        NTSTATUS result = security(fs, parent, &attributes, &descriptor, &size);
        free(descriptor);
        uint32_t index = attributes;
        if (result == SUCCESS && attributes & ATTRIBUTE_REPARSE_POINT) {
            result = REPARSE;
            index = last_name(parent);
        }
        if (result == NAME_NOT_FOUND)
            return PATH_NOT_FOUND;
        if (result == REPARSE)
            result = resolve(fs, path, index, 1);
        else
            return result;
        if (result != SUCCESS)
            return result;
    }
    return NOT_RESOLVED;
}

/*
 * Create as CreateFile does for a name that is not there: the parent's descriptor is asked for, and the new file's is
 * given, its size before it (see FspSetSecurityDescriptor). A name that is there is opened and overwritten. `path` has
 * PATH_UNITS.
 */
NTSTATUS host_create(FileSystem *fs, WCHAR *path, uint32_t options, uint32_t attributes, const void *descriptor,
    int overwrite, void **context, FileInfo *info) {
    if (!enter(fs))
        return CANCELLED;
    OpenFileInfo open = {0};
    WCHAR normalized[PATH_UNITS];
    open.NormalizedName = normalized;
    open.NormalizedNameSize = sizeof normalized;
    *context = 0;
    NTSTATUS result;
    if (overwrite) {
        result = fs->interface->Open(fs, path, options, 0x12019f, context, &open.Info);
        if (result == SUCCESS)
            result = fs->interface->Overwrite(fs, *context, attributes, 0, 0, &open.Info);
    } else {
        result = look_at_parent(fs, path);
        if (result == SUCCESS)
            result = fs->interface->Create(
                fs, path, options, 0x12019f, attributes, (void *)descriptor, 0, context, &open.Info);
    }
    *info = open.Info;
    return leave(fs, result);
}

NTSTATUS host_write(FileSystem *fs, void *context, void *data, uint64_t offset, uint32_t size, int constrained,
    uint32_t *done, FileInfo *info) {
    if (!enter(fs))
        return CANCELLED;
    *done = 0;
    return leave(fs, fs->interface->Write(
        fs, context, data, offset, size, offset == UINT64_MAX, (uint8_t)constrained, done, info));
}

NTSTATUS host_flush(FileSystem *fs, void *context, FileInfo *info) {
    if (!enter(fs))
        return CANCELLED;
    return leave(fs, fs->interface->Flush(fs, context, info));
}

NTSTATUS host_set_size(FileSystem *fs, void *context, uint64_t size, int allocation, FileInfo *info) {
    if (!enter(fs))
        return CANCELLED;
    return leave(fs, fs->interface->SetFileSize(fs, context, size, (uint8_t)allocation, info));
}

NTSTATUS host_set_basic(
    FileSystem *fs, void *context, uint32_t attributes, uint64_t accessed, uint64_t written, FileInfo *info) {
    if (!enter(fs))
        return CANCELLED;
    return leave(fs, fs->interface->SetBasicInfo(fs, context, attributes, 0, accessed, written, 0, info));
}

NTSTATUS host_rename(FileSystem *fs, void *context, WCHAR *name, WCHAR *new_name, int replace) {
    if (!enter(fs))
        return CANCELLED;
    return leave(fs, fs->interface->Rename(fs, context, name, new_name, (uint8_t)replace));
}

/* DeleteFile on an open handle: may it be, and then its name goes with the last cleanup. */
NTSTATUS host_may_delete(FileSystem *fs, void *context, WCHAR *name) {
    if (!enter(fs))
        return CANCELLED;
    return leave(fs, fs->interface->CanDelete(fs, context, name));
}

/* The last handle of a file is closed, which is deleted by that or not. */
void host_cleanup(FileSystem *fs, void *context, WCHAR *name, int deletes) {
    if (enter(fs)) {
        fs->interface->Cleanup(fs, context, deletes ? name : 0, (uint32_t)deletes);
        leave(fs, SUCCESS);
    }
}

NTSTATUS host_delete(FileSystem *fs, void *context, WCHAR *name) {
    NTSTATUS result = host_may_delete(fs, context, name);
    if (result == SUCCESS)
        host_cleanup(fs, context, name, 1);
    return result;
}

NTSTATUS host_set_security(FileSystem *fs, void *context, void *change) {
    if (!enter(fs))
        return CANCELLED;
    return leave(fs, fs->interface->SetSecurity(fs, context, 7, change));
}

NTSTATUS host_set_link(FileSystem *fs, void *context, WCHAR *name, void *data, size_t size) {
    if (!enter(fs))
        return CANCELLED;
    return leave(fs, fs->interface->SetReparsePoint(fs, context, name, data, size));
}

const Interface *host_interface(FileSystem *fs) { return fs->interface; }

/* ------------------------------------------------------------------ many threads at once */

typedef struct {
    FileSystem *fs;
    void *context;
    const char *expected;
    uint64_t size;
    uint32_t read_max, rounds;
    uint64_t seed;
    int wrong;
} Reader;

static void *reader(void *argument) {
    Reader *r = argument;
    char *buffer = malloc(r->read_max);
    for (uint32_t i = 0; i < r->rounds; i++) {
        r->seed = r->seed * 6364136223846793005u + 1442695040888963407u;
        uint64_t offset = (r->seed >> 17) % r->size;
        uint32_t want = 1 + (uint32_t)((r->seed >> 7) % r->read_max), done = 0;
        uint64_t expected = offset + want > r->size ? r->size - offset : want;
        NTSTATUS result = host_read(r->fs, r->context, buffer, offset, want, &done);
        if (result != SUCCESS || done != expected || memcmp(buffer, r->expected + offset, done))
            r->wrong++;
    }
    free(buffer);
    return 0;
}

/* Read at random from threads that this makes; how many reads were not what was expected. */
int host_hammer(FileSystem *fs, void *context, const char *expected, uint64_t size, uint32_t read_max, uint32_t threads,
    uint32_t rounds) {
    pthread_t ids[256];
    Reader readers[256];
    int wrong = 0;
    for (uint32_t i = 0; i < threads; i++) {
        readers[i] = (Reader){fs, context, expected, size, read_max, rounds, i * 977 + 1, 0};
        pthread_create(&ids[i], 0, reader, &readers[i]);
    }
    for (uint32_t i = 0; i < threads; i++) {
        pthread_join(ids[i], 0);
        wrong += readers[i].wrong;
    }
    return wrong;
}
