//! Preloaded into a member: a wall clock that can jump, and a disk that can be full, slow, or lose
//! what was not synced, as the harness says in a page of shared memory (`layout.rs`).
//!
//! It stands between the program and the C library, so nothing about the program is special, and it
//! needs no privileges. Without the page it changes nothing.

use std::ffi::{CStr, OsStr, c_char, c_int, c_long, c_uint, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicI64, AtomicPtr, AtomicUsize, Ordering};

#[allow(dead_code, reason = "the harness uses the rest")]
mod layout;
mod undo;

const CLOCK_REALTIME: c_int = 0;
const CLOCK_REALTIME_COARSE: c_int = 5;
const ENOSPC: c_int = 28;
const RTLD_NEXT: *mut c_void = -1_isize as *mut c_void;
const SEEK_CUR: c_int = 1;
const F_GETFL: c_int = 3;
const O_APPEND: c_int = 0o2000;
const O_RDWR: c_int = 2;
const PROT_READ_WRITE: c_int = 3;
const MAP_SHARED: c_int = 1;
const MAP_FAILED: *mut c_void = -1_isize as *mut c_void;
const SECOND_NS: i64 = 1_000_000_000;

#[repr(C)]
pub struct Timespec {
    seconds: i64,
    nanoseconds: c_long,
}

#[repr(C)]
pub struct Timeval {
    seconds: i64,
    microseconds: c_long,
}

#[repr(C)]
pub struct Piece {
    base: *const c_void,
    length: usize,
}

unsafe extern "C" {
    fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
    fn getenv(name: *const c_char) -> *const c_char;
    fn open(path: *const c_char, flags: c_int, ...) -> c_int;
    fn close(fd: c_int) -> c_int;
    fn mmap(
        at: *mut c_void,
        bytes: usize,
        prot: c_int,
        flags: c_int,
        fd: c_int,
        from: i64,
    ) -> *mut c_void;
    fn readlink(path: *const c_char, into: *mut c_char, size: usize) -> isize;
    fn lseek64(fd: c_int, offset: i64, whence: c_int) -> i64;
    fn fcntl(fd: c_int, command: c_int, ...) -> c_int;
    fn usleep(microseconds: c_uint) -> c_int;
    fn __errno_location() -> *mut c_int;
}

static PAGE: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());
static DISK: AtomicPtr<c_char> = AtomicPtr::new(ptr::null_mut());

// Runs before the program's `main`.
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

extern "C" fn start() {
    let named = |name: &str| {
        let mut text = [0_u8; 64];
        text[..name.len()].copy_from_slice(name.as_bytes());
        // SAFETY: `text` ends with zeros.
        unsafe { getenv(text.as_ptr().cast()) }
    };
    let (path, disk) = (
        named(layout::CONTROL_VARIABLE),
        named(layout::DISK_VARIABLE),
    );
    if path.is_null() {
        return;
    }
    let undo = named(layout::UNDO_VARIABLE);
    if !undo.is_null() {
        // SAFETY: a C string of the environment.
        let bytes = unsafe { CStr::from_ptr(undo) }.to_bytes();
        undo::use_folder(Path::new(OsStr::from_bytes(bytes)));
    }
    // SAFETY: `path` is a C string of the environment, which nobody changes this early; the mapping
    // is never unmapped.
    unsafe {
        let fd = open(path, O_RDWR);
        if fd < 0 {
            return;
        }
        let page = mmap(
            ptr::null_mut(),
            layout::PAGE_BYTES,
            PROT_READ_WRITE,
            MAP_SHARED,
            fd,
            0,
        );
        close(fd);
        if page != MAP_FAILED {
            DISK.store(disk.cast_mut(), Ordering::Release);
            PAGE.store(page.cast(), Ordering::Release);
        }
    }
}

/// A number of the page, if there is one.
fn number(offset: usize) -> Option<&'static AtomicI64> {
    let page = PAGE.load(Ordering::Acquire);
    if page.is_null() {
        return None;
    }
    // SAFETY: offsets are aligned and inside of the page, which stays mapped.
    Some(unsafe { &*page.add(offset).cast::<AtomicI64>() })
}

fn value(offset: usize) -> i64 {
    number(offset).map_or(0, |number| number.load(Ordering::Relaxed))
}

/// The function that this library stands before.
fn next(slot: &AtomicUsize, name: &CStr) -> usize {
    let known = slot.load(Ordering::Relaxed);
    if known != 0 {
        return known;
    }
    // SAFETY: a C string, and a handle that dlsym knows.
    let found = unsafe { dlsym(RTLD_NEXT, name.as_ptr()) } as usize;
    slot.store(found, Ordering::Relaxed);
    found
}

macro_rules! original {
    ($name:literal, fn($($kind:ty),*) -> $result:ty) => {{
        static SLOT: AtomicUsize = AtomicUsize::new(0);
        let found = next(&SLOT, $name);
        // SAFETY: the C library's function of this name has this type.
        unsafe { std::mem::transmute::<usize, unsafe extern "C" fn($($kind),*) -> $result>(found) }
    }};
}

// The clock.

#[unsafe(no_mangle)]
pub unsafe extern "C" fn clock_gettime(clock: c_int, out: *mut Timespec) -> c_int {
    let original = original!(c"clock_gettime", fn(c_int, *mut Timespec) -> c_int);
    // SAFETY: passed on as it came.
    let result = unsafe { original(clock, out) };
    let offset = value(layout::CLOCK_OFFSET_NS);
    if result == 0 && offset != 0 && matches!(clock, CLOCK_REALTIME | CLOCK_REALTIME_COARSE) {
        // SAFETY: the call before has written it.
        let time = unsafe { &mut *out };
        let now = time.seconds * SECOND_NS + time.nanoseconds + offset;
        time.seconds = now.div_euclid(SECOND_NS);
        time.nanoseconds = now.rem_euclid(SECOND_NS);
    }
    result
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn gettimeofday(out: *mut Timeval, _zone: *mut c_void) -> c_int {
    let mut time = Timespec {
        seconds: 0,
        nanoseconds: 0,
    };
    // SAFETY: `time` is ours, and the caller gives a place for the answer.
    unsafe {
        let result = clock_gettime(CLOCK_REALTIME, &mut time);
        if result == 0 && !out.is_null() {
            *out = Timeval {
                seconds: time.seconds,
                microseconds: time.nanoseconds / 1000,
            };
        }
        result
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn time(out: *mut i64) -> i64 {
    let mut time = Timespec {
        seconds: 0,
        nanoseconds: 0,
    };
    // SAFETY: as above.
    unsafe {
        clock_gettime(CLOCK_REALTIME, &mut time);
        if !out.is_null() {
            *out = time.seconds;
        }
    }
    time.seconds
}

// The disk.

/// The file of this descriptor lies on the disk.
fn is_on_disk(fd: c_int) -> bool {
    let disk = DISK.load(Ordering::Acquire);
    if disk.is_null() || fd < 0 {
        return false;
    }
    let mut path = *b"/proc/self/fd/\0\0\0\0\0\0\0\0\0\0\0\0";
    let (mut digits, mut rest) = ([0_u8; 10], fd);
    let mut count = 0;
    while count == 0 || rest > 0 {
        digits[count] = b'0' + (rest % 10) as u8;
        rest /= 10;
        count += 1;
    }
    for place in 0..count {
        path[14 + place] = digits[count - 1 - place];
    }
    let mut target = [0_u8; 1024];
    // SAFETY: `path` ends with a zero, `target` is as large as said, `disk` is a C string.
    unsafe {
        let length = readlink(
            path.as_ptr().cast(),
            target.as_mut_ptr().cast(),
            target.len(),
        );
        let disk = CStr::from_ptr(disk).to_bytes();
        length > 0 && target.starts_with(disk)
    }
}

fn refuse() {
    if let Some(count) = number(layout::WRITES_REFUSED) {
        count.fetch_add(1, Ordering::Relaxed);
    }
    // SAFETY: every thread has its error number.
    unsafe { *__errno_location() = ENOSPC };
}

/// Where the next `write` goes; none: to the end.
fn position(fd: c_int) -> Option<u64> {
    // SAFETY: only asks about the caller's descriptor.
    let at = unsafe {
        if fcntl(fd, F_GETFL) & O_APPEND != 0 {
            return None;
        }
        lseek64(fd, 0, SEEK_CUR)
    };
    u64::try_from(at).ok()
}

/// How many of these bytes still fit; none: the disk is full.
fn room(fd: c_int, bytes: usize) -> Option<usize> {
    let Some(left) = number(layout::DISK_BYTES_LEFT) else {
        return Some(bytes);
    };
    if left.load(Ordering::Relaxed) < 0 || bytes == 0 || !is_on_disk(fd) {
        return Some(bytes);
    }
    let taken = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
        // It may have been made unbounded meanwhile.
        (left >= 0).then(|| left - left.min(bytes as i64))
    });
    match taken {
        Err(_) => Some(bytes),
        Ok(0) => {
            refuse();
            None
        }
        Ok(left) => Some(bytes.min(left as usize)),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn write(fd: c_int, from: *const c_void, bytes: usize) -> isize {
    let original = original!(c"write", fn(c_int, *const c_void, usize) -> isize);
    match room(fd, bytes) {
        Some(fits) => {
            let _recorded = if is_on_disk(fd) {
                undo::record(fd, position(fd), fits as u64)
            } else {
                None
            };
            // SAFETY: no more than the caller gave.
            unsafe { original(fd, from, fits) }
        }
        None => -1,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pwrite64(fd: c_int, from: *const c_void, bytes: usize, at: i64) -> isize {
    let original = original!(c"pwrite64", fn(c_int, *const c_void, usize, i64) -> isize);
    match room(fd, bytes) {
        Some(fits) => {
            let _recorded = if is_on_disk(fd) {
                undo::record(fd, u64::try_from(at).ok(), fits as u64)
            } else {
                None
            };
            // SAFETY: no more than the caller gave.
            unsafe { original(fd, from, fits, at) }
        }
        None => -1,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pwrite(fd: c_int, from: *const c_void, bytes: usize, at: i64) -> isize {
    // SAFETY: the same function on 64-bit machines.
    unsafe { pwrite64(fd, from, bytes, at) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn writev(fd: c_int, pieces: *const Piece, count: c_int) -> isize {
    let original = original!(c"writev", fn(c_int, *const Piece, c_int) -> isize);
    if count > 0 && is_on_disk(fd) {
        // SAFETY: the caller gives `count` pieces; writing only the first is allowed.
        let first = unsafe { &*pieces };
        // SAFETY: as the caller described it.
        return unsafe { write(fd, first.base, first.length) };
    }
    // SAFETY: passed on as it came.
    unsafe { original(fd, pieces, count) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fallocate64(fd: c_int, mode: c_int, from: i64, bytes: i64) -> c_int {
    let original = original!(c"fallocate64", fn(c_int, c_int, i64, i64) -> c_int);
    if value(layout::DISK_BYTES_LEFT) == 0 && is_on_disk(fd) {
        refuse();
        return -1;
    }
    let _recorded = if is_on_disk(fd) {
        undo::record(fd, None, 0)
    } else {
        None
    };
    // SAFETY: passed on as it came.
    unsafe { original(fd, mode, from, bytes) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fallocate(fd: c_int, mode: c_int, from: i64, bytes: i64) -> c_int {
    // SAFETY: the same function on 64-bit machines.
    unsafe { fallocate64(fd, mode, from, bytes) }
}

fn delay(fd: c_int) {
    let delay_ms = value(layout::SYNC_DELAY_MS);
    if delay_ms > 0 && is_on_disk(fd) {
        let microseconds = delay_ms.min(60_000) as c_uint * 1000;
        // SAFETY: only waits.
        unsafe { usleep(microseconds) };
    }
}

fn synced(fd: c_int, sync: impl FnOnce() -> c_int) -> c_int {
    let begun = if is_on_disk(fd) {
        undo::begin_sync(fd)
    } else {
        None
    };
    let result = sync();
    if result == 0
        && let Some(begun) = begun
    {
        undo::end_sync(&begun);
    }
    result
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ftruncate64(fd: c_int, length: i64) -> c_int {
    let original = original!(c"ftruncate64", fn(c_int, i64) -> c_int);
    let _recorded = if is_on_disk(fd) {
        undo::record(fd, u64::try_from(length).ok(), u64::MAX)
    } else {
        None
    };
    // SAFETY: passed on as it came.
    unsafe { original(fd, length) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ftruncate(fd: c_int, length: i64) -> c_int {
    // SAFETY: the same function on 64-bit machines.
    unsafe { ftruncate64(fd, length) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fsync(fd: c_int) -> c_int {
    delay(fd);
    let original = original!(c"fsync", fn(c_int) -> c_int);
    // SAFETY: passed on as it came.
    synced(fd, || unsafe { original(fd) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdatasync(fd: c_int) -> c_int {
    delay(fd);
    let original = original!(c"fdatasync", fn(c_int) -> c_int);
    // SAFETY: passed on as it came.
    synced(fd, || unsafe { original(fd) })
}
