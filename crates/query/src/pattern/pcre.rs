//! PCRE2, the library whose regular expressions these are. All unsafe code of the crate is here.
//!
//! A match backtracks and may take exponential time, so each is bounded: in steps, in time and in
//! memory. To count its steps the pattern is compiled with a callout before each of its parts.

use std::cell::RefCell;
use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::ptr::{self, NonNull};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use pcre2_sys as sys;

use crate::budget::Budget;
use crate::error::QueryError;

unsafe extern "C" {
    // `pcre2-sys` links this function and does not declare it.
    fn pcre2_set_callout_8(
        context: *mut sys::pcre2_match_context_8,
        callout: Option<unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int>,
        data: *mut c_void,
    ) -> c_int;
}

/// Steps of one match, as many as the library's own limit allows by default.
const STEPS_MAX: u32 = 10_000_000;
/// The time of one match. Only patterns that go over a long text again and again take so long.
const TIME_MAX: Duration = Duration::from_secs(1);
/// Bytes that may be gone over between two looks at the clock: a step takes in the text once at
/// most.
const BYTES_PER_LOOK: usize = 4 * 1024 * 1024;
/// The memory of one match, in KiB.
const HEAP_KIB_MAX: u32 = 32 * 1024;
/// What a thread keeps of it for the next match, in bytes.
const HEAP_BYTES_KEPT: usize = 256 * 1024;

static NOTHING: [u8; 16] = [0; 16];

/// A compiled pattern.
#[derive(Debug)]
pub(super) struct Code {
    raw: NonNull<sys::pcre2_code_8>,
    /// Whether its steps can be counted.
    counted: bool,
}

// SAFETY: compiled code is not changed by matching (only by JIT compilation, which is not used), so
// any number of threads may read it, and any thread may free it.
unsafe impl Send for Code {}
// SAFETY: as above.
unsafe impl Sync for Code {}

impl Drop for Code {
    fn drop(&mut self) {
        // SAFETY: `raw` came from `pcre2_compile_8` and is freed once.
        unsafe { sys::pcre2_code_free_8(self.raw.as_ptr()) }
    }
}

/// Why there is no answer.
#[derive(Debug, PartialEq, Eq)]
pub enum MatchError {
    /// The match was given up, with the library's code.
    GaveUp(i32),
    /// The operation has to end.
    Ended(QueryError),
}

/// What a pattern is compiled with: newlines are line feeds, `\R` is any line ending.
struct CompileContext(NonNull<sys::pcre2_compile_context_8>);

// SAFETY: the context is set up before it is shared and only read afterwards.
unsafe impl Send for CompileContext {}
// SAFETY: as above.
unsafe impl Sync for CompileContext {}

static COMPILE_CONTEXT: LazyLock<Option<CompileContext>> = LazyLock::new(|| {
    // SAFETY: a null general context means the default allocator; the new context is not null
    // where it is used.
    unsafe {
        let context = NonNull::new(sys::pcre2_compile_context_create_8(ptr::null_mut()))?;
        sys::pcre2_set_newline_8(context.as_ptr(), sys::PCRE2_NEWLINE_LF);
        sys::pcre2_set_bsr_8(context.as_ptr(), sys::PCRE2_BSR_UNICODE);
        Some(CompileContext(context))
    }
});

impl Code {
    /// `options` are those of MongoDB; the error is the library's message.
    pub fn compile(source: &str, options: &str) -> Result<Code, String> {
        let mut flags = sys::PCRE2_UTF | sys::PCRE2_NEVER_BACKSLASH_C;
        for option in options.chars() {
            flags |= match option {
                'i' => sys::PCRE2_CASELESS,
                'm' => sys::PCRE2_MULTILINE,
                's' => sys::PCRE2_DOTALL,
                'x' => sys::PCRE2_EXTENDED,
                _ => 0,
            };
        }
        let counted =
            compile(source, flags | sys::PCRE2_AUTO_CALLOUT).map(|raw| Code { raw, counted: true });
        let too_large = sys::PCRE2_ERROR_PATTERN_TOO_LARGE as c_int;
        counted
            .or_else(|code| match code {
                // Callouts make a pattern several times as large.
                code if code == too_large => compile(source, flags).map(|raw| Code {
                    raw,
                    counted: false,
                }),
                code => Err(code),
            })
            .map_err(message)
    }

    /// How many bytes it takes.
    pub fn bytes(&self) -> usize {
        let mut bytes: usize = 0;
        // SAFETY: PCRE2_INFO_SIZE writes a size_t.
        unsafe {
            let out: *mut usize = &mut bytes;
            sys::pcre2_pattern_info_8(self.raw.as_ptr(), sys::PCRE2_INFO_SIZE, out.cast());
        }
        bytes
    }

    fn groups(&self) -> u32 {
        let mut groups: u32 = 0;
        // SAFETY: PCRE2_INFO_CAPTURECOUNT writes a uint32_t.
        unsafe {
            let out: *mut u32 = &mut groups;
            let wanted = sys::PCRE2_INFO_CAPTURECOUNT;
            sys::pcre2_pattern_info_8(self.raw.as_ptr(), wanted, out.cast());
        }
        groups
    }

    pub fn is_match(&self, text: &str, budget: &Budget) -> Result<bool, MatchError> {
        thread_local! {
            static MATCH: RefCell<Option<Match>> = const { RefCell::new(None) };
        }
        MATCH.with_borrow_mut(|kept| {
            let mut found = kept.take().map_or_else(|| Match::new(1), Ok)?;
            let answer = found.run(self, text, 0, budget);
            if found.heap_bytes() <= HEAP_BYTES_KEPT {
                *kept = Some(found);
            }
            answer
        })
    }

    /// The first match at or after byte `start`: its range, and those of its groups.
    pub fn captures(
        &self,
        text: &str,
        start: usize,
        budget: &Budget,
    ) -> Result<Option<Vec<Option<Range<usize>>>>, MatchError> {
        let mut found = Match::new(self.groups() + 1)?;
        let matched = found.run(self, text, start, budget)?;
        Ok(matched.then(|| found.ranges(text)))
    }
}

fn compile(source: &str, flags: u32) -> Result<NonNull<sys::pcre2_code_8>, c_int> {
    let context = COMPILE_CONTEXT
        .as_ref()
        .map_or(ptr::null_mut(), |context| context.0.as_ptr());
    let (mut code, mut offset) = (0, 0);
    // SAFETY: the pattern is given with its length, and the library copies what it keeps.
    let raw = unsafe {
        sys::pcre2_compile_8(
            source.as_ptr(),
            source.len(),
            flags,
            &mut code,
            &mut offset,
            context,
        )
    };
    NonNull::new(raw).ok_or(code)
}

/// The library's message. Two of the most usual ones are worded as before PCRE2, as MongoDB 6 has
/// them.
fn message(code: c_int) -> String {
    match code {
        109 => return "nothing to repeat".to_owned(),
        114 => return "missing )".to_owned(),
        _ => {}
    }
    let mut buffer = [0u8; 256];
    // SAFETY: the library writes no more than the buffer's length, with a zero at the end.
    let length = unsafe { sys::pcre2_get_error_message_8(code, buffer.as_mut_ptr(), buffer.len()) };
    let length = usize::try_from(length).unwrap_or(0);
    String::from_utf8_lossy(&buffer[..length]).into_owned()
}

/// Room for one match at a time.
struct Match {
    data: NonNull<sys::pcre2_match_data_8>,
    context: NonNull<sys::pcre2_match_context_8>,
}

impl Drop for Match {
    fn drop(&mut self) {
        // SAFETY: both were created by the library and are freed once.
        unsafe {
            sys::pcre2_match_data_free_8(self.data.as_ptr());
            sys::pcre2_match_context_free_8(self.context.as_ptr());
        }
    }
}

/// The steps of a match that is under way.
struct Steps<'b> {
    budget: &'b Budget,
    /// Why the operation has to end.
    ended: Option<QueryError>,
    taken: u32,
    /// Steps between two looks at the clock.
    look: u32,
    next_look: u32,
    end: Option<Instant>,
}

/// Called before each part of the pattern that is tried.
unsafe extern "C" fn step(_: *mut c_void, steps: *mut c_void) -> c_int {
    // SAFETY: `Match::run` gave the library this pointer, and holds what it points to for as long
    // as the match runs.
    let steps = unsafe { &mut *steps.cast::<Steps<'_>>() };
    steps.taken += 1;
    if steps.taken < steps.next_look {
        0
    } else {
        steps.look()
    }
}

impl Steps<'_> {
    fn new<'b>(text: &str, budget: &'b Budget) -> Steps<'b> {
        let look = (BYTES_PER_LOOK / text.len().max(1)).clamp(1, 4096) as u32;
        Steps {
            budget,
            ended: None,
            taken: 0,
            look,
            next_look: look,
            end: None,
        }
    }

    #[cold]
    fn look(&mut self) -> c_int {
        if self.taken >= STEPS_MAX {
            return sys::PCRE2_ERROR_MATCHLIMIT;
        }
        let now = Instant::now();
        let end = *self.end.get_or_insert(now + TIME_MAX);
        self.next_look = self.taken.saturating_add(self.look);
        // As much work as there is between two looks at the clock.
        if let Err(error) = self.budget.spend_bytes(BYTES_PER_LOOK) {
            self.ended = Some(error);
            return sys::PCRE2_ERROR_CALLOUT;
        }
        if now > end {
            sys::PCRE2_ERROR_MATCHLIMIT
        } else {
            0
        }
    }
}

impl Match {
    /// Room for the ranges of so many groups, the whole match being one.
    fn new(groups: u32) -> Result<Match, MatchError> {
        let no_memory = || MatchError::GaveUp(sys::PCRE2_ERROR_NOMEMORY);
        // SAFETY: a null general context means the default allocator.
        let data = unsafe { sys::pcre2_match_data_create_8(groups, ptr::null_mut()) };
        let data = NonNull::new(data).ok_or_else(no_memory)?;
        // SAFETY: as above.
        let context = unsafe { sys::pcre2_match_context_create_8(ptr::null_mut()) };
        let Some(context) = NonNull::new(context) else {
            // SAFETY: nobody else has `data`.
            unsafe { sys::pcre2_match_data_free_8(data.as_ptr()) };
            return Err(no_memory());
        };
        // SAFETY: the context is a live one.
        unsafe { sys::pcre2_set_heap_limit_8(context.as_ptr(), HEAP_KIB_MAX) };
        Ok(Match { data, context })
    }

    fn run(
        &mut self,
        code: &Code,
        text: &str,
        start: usize,
        budget: &Budget,
    ) -> Result<bool, MatchError> {
        let mut steps = Steps::new(text, budget);
        let limit = if code.counted {
            STEPS_MAX
        } else {
            // Without callouts the library counts, for each place where a match may start.
            let places = u32::try_from(text.len()).unwrap_or(u32::MAX).max(1);
            STEPS_MAX
                .saturating_mul(10)
                .div_euclid(places)
                .clamp(1000, STEPS_MAX)
        };
        // The library takes lengths off pointers into the text: an empty text, which Rust lets
        // point to nowhere, is put where there is something.
        let bytes: &[u8] = if text.is_empty() {
            &NOTHING[NOTHING.len()..]
        } else {
            text.as_bytes()
        };
        // SAFETY: `steps` lives until the match is over; text, start and options are what the
        // library asks for: UTF-8, checked, and a start on the boundary of a character.
        let result = unsafe {
            sys::pcre2_set_match_limit_8(self.context.as_ptr(), limit);
            let data: *mut Steps<'_> = &mut steps;
            pcre2_set_callout_8(self.context.as_ptr(), Some(step), data.cast());
            let result = sys::pcre2_match_8(
                code.raw.as_ptr(),
                bytes.as_ptr(),
                bytes.len(),
                start,
                sys::PCRE2_NO_UTF_CHECK,
                self.data.as_ptr(),
                self.context.as_ptr(),
            );
            pcre2_set_callout_8(self.context.as_ptr(), None, ptr::null_mut());
            result
        };
        if let Some(error) = steps.ended {
            return Err(MatchError::Ended(error));
        }
        match result {
            // Zero: a match with more groups than there is room for.
            0.. => Ok(true),
            sys::PCRE2_ERROR_NOMATCH => Ok(false),
            code => Err(MatchError::GaveUp(code)),
        }
    }

    fn heap_bytes(&self) -> usize {
        // SAFETY: the match data is a live one.
        unsafe { sys::pcre2_get_match_data_heapframes_size_8(self.data.as_ptr()) }
    }

    /// The ranges of the groups of the last match.
    fn ranges(&self, text: &str) -> Vec<Option<Range<usize>>> {
        // SAFETY: the vector has two offsets for each group that there was room for, all of them
        // written by a match.
        let offsets = unsafe {
            let count = sys::pcre2_get_ovector_count_8(self.data.as_ptr()) as usize;
            let offsets = sys::pcre2_get_ovector_pointer_8(self.data.as_ptr());
            std::slice::from_raw_parts(offsets, 2 * count)
        };
        let ranges = offsets.chunks_exact(2).map(|pair| pair[0]..pair[1]);
        // A group that took no part has offsets beyond the text. `\K` may put a start behind its
        // end.
        ranges
            .map(|range| Some(range).filter(|range| text.get(range.clone()).is_some()))
            .collect()
    }
}
