//! Telling the processor what will be read soon.

use std::ops::Range;

const LINE_BYTES: usize = 64;

/// Has the lines of a range fetched into the cache, without waiting for them. What lies behind the end of
/// the bytes is left out.
#[inline]
pub fn prefetch(bytes: &[u8], range: Range<usize>) {
    let end = range.end.min(bytes.len());
    let Some(soon) = bytes.get(range.start..end) else {
        return;
    };
    for line in soon.chunks(LINE_BYTES) {
        fetch(line.as_ptr());
    }
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn fetch(line: *const u8) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: a hint, which neither reads nor fails, whatever the address.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(line.cast()) };
}

#[cfg(not(target_arch = "x86_64"))]
fn fetch(_: *const u8) {}
