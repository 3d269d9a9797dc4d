/* Reads byte ranges of a file as an inference engine does, and says how long each step took.
 *
 *     replay FILE MODE LIMIT_S STEPPED PLAN...
 *
 * MODE     mmap | mmap-random (MADV_RANDOM) | mmap-whole | pread | direct (O_DIRECT pread)
 * LIMIT_S  a step that takes longer is cut short; 0 for no limit
 * STEPPED  1: after each step its pages are given up and a byte is read from stdin before the next one begins
 * PLAN     a file of pairs of 64-bit words in the machine's order: offset, length; (0, 0) ends a step
 *
 * Each step prints one line: bytes that were wanted, bytes that were read, nanoseconds. In the mmap modes one word of
 * every page is loaded, so that the time is the kernel's and the file system's, not the loop's; mmap-whole loads every
 * word. Pages are touched in order within a range, and ranges in the order of the plan.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096ULL
#define PAGES_PER_LOOK 64 /* at the clock */

struct range {
    uint64_t offset, length;
};

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000ULL + (uint64_t)t.tv_nsec;
}

static void die(const char *what)
{
    fprintf(stderr, "replay: %s: %s\n", what, strerror(errno));
    exit(1);
}

static volatile uint64_t sink;

/* Bytes touched before `end_ns`. */
static uint64_t touch(const char *map, struct range r, int whole, uint64_t end_ns)
{
    uint64_t first = r.offset & ~(PAGE - 1), last = r.offset + r.length, sum = 0, page = first;
    unsigned looks = 0;
    for (; page < last; page += PAGE) {
        if (++looks == PAGES_PER_LOOK) {
            looks = 0;
            if (now_ns() > end_ns)
                break;
        }
        const volatile uint64_t *word = (const volatile uint64_t *)(map + page);
        sum += *word;
        if (whole) /* the page is mapped now: plain loads, which the compiler may widen */
            for (size_t i = 1; i < PAGE / sizeof sum; i++)
                sum += ((const uint64_t *)(map + page))[i];
    }
    sink += sum;
    return page >= last ? r.length : page > r.offset ? page - r.offset : 0;
}

static uint64_t read_range(int fd, char *buffer, struct range r, int direct, uint64_t end_ns)
{
    uint64_t start = r.offset, last = r.offset + r.length, done = 0;
    if (direct) {
        start &= ~(PAGE - 1);
        last = (last + PAGE - 1) & ~(PAGE - 1);
    }
    if (now_ns() > end_ns)
        return 0;
    while (start + done < r.offset + r.length) {
        ssize_t got = pread(fd, buffer + done, last - start - done, (off_t)(start + done));
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            die("pread");
        if (got == 0)
            break;
        done += (uint64_t)got; /* with O_DIRECT a multiple of a page, but at the end of the file */
    }
    if (start + done < r.offset + r.length) {
        fprintf(stderr, "replay: the file ends inside a range\n");
        exit(1);
    }
    return r.length;
}

static struct range *read_plan(const char *path, size_t *count, uint64_t *longest)
{
    struct stat st;
    int fd = open(path, O_RDONLY);
    if (fd < 0 || fstat(fd, &st) < 0)
        die(path);
    struct range *plan = malloc((size_t)st.st_size + 1);
    if (plan == NULL || read(fd, plan, (size_t)st.st_size) != st.st_size)
        die(path);
    close(fd);
    *count = (size_t)st.st_size / sizeof *plan;
    *longest = 0;
    for (size_t i = 0; i < *count; i++)
        if (plan[i].length > *longest)
            *longest = plan[i].length;
    return plan;
}

int main(int argc, char **argv)
{
    if (argc != 6) {
        fprintf(stderr, "usage: replay FILE mmap|mmap-random|mmap-whole|pread|direct LIMIT_S STEPPED PLAN\n");
        return 2;
    }
    const char *mode = argv[2];
    int whole = strcmp(mode, "mmap-whole") == 0;
    int mapped = strncmp(mode, "mmap", 4) == 0, direct = strcmp(mode, "direct") == 0;
    uint64_t limit_ns = (uint64_t)(atof(argv[3]) * 1e9), longest;
    int stepped = atoi(argv[4]);
    size_t count;
    struct range *plan = read_plan(argv[5], &count, &longest);
    int fd = open(argv[1], O_RDONLY | (direct ? O_DIRECT : 0));
    struct stat st;
    if (fd < 0 || fstat(fd, &st) < 0)
        die(argv[1]);
    char *map = NULL, *buffer = NULL;
    if (mapped) {
        map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
        if (map == MAP_FAILED)
            die("mmap");
        if (strcmp(mode, "mmap-random") == 0 && madvise(map, (size_t)st.st_size, MADV_RANDOM) < 0)
            die("madvise");
    } else {
        size_t size = (longest + 2 * PAGE) & ~(PAGE - 1);
        if (posix_memalign((void **)&buffer, PAGE, size) != 0)
            die("memory");
        memset(buffer, 1, size); /* its pages are there before the clock starts */
    }
    for (size_t i = 0; i < count; i++) {
        uint64_t wanted = 0, done = 0, start_ns = now_ns();
        uint64_t end_ns = limit_ns ? start_ns + limit_ns : UINT64_MAX;
        for (; i < count && plan[i].length; i++) {
            wanted += plan[i].length;
            done += mapped ? touch(map, plan[i], whole, end_ns) : read_range(fd, buffer, plan[i], direct, end_ns);
        }
        printf("%llu %llu %llu\n", (unsigned long long)wanted, (unsigned long long)done,
               (unsigned long long)(now_ns() - start_ns));
        fflush(stdout);
        if (stepped) {
            if (mapped && madvise(map, (size_t)st.st_size, MADV_DONTNEED) < 0)
                die("madvise");
            if (getchar() == EOF)
                break;
        }
    }
    return 0;
}
