//! V8 strings for bytes, made once where they repeat.
//!
//! Names of fields are few and come with every document: they are interned at first sight.
//! Values repeat less: a short one is kept when it is seen a second time, so that a column of
//! unique strings costs no handle each. Both caches have a fixed number of slots; a string
//! that falls into a taken slot takes it over.

use std::hash::Hasher;

const SLOTS: usize = 4096;
const CACHED_BYTES_MAX: usize = 64;

#[derive(Default)]
struct Slot {
    /// The hash last seen here, kept or not.
    seen: u64,
    bytes: Box<[u8]>,
    string: Option<v8::Global<v8::String>>,
}

pub struct StringCache {
    slots: Box<[Slot]>,
    /// How often a string must be seen to be kept: at once, or the second time.
    keep_at_once: bool,
}

impl StringCache {
    pub fn of_names() -> Self {
        Self::new(true)
    }

    pub fn of_values() -> Self {
        Self::new(false)
    }

    fn new(keep_at_once: bool) -> Self {
        let slots = (0..SLOTS).map(|_| Slot::default()).collect();
        StringCache {
            slots,
            keep_at_once,
        }
    }

    #[inline]
    pub fn get<'s>(
        &mut self,
        scope: &mut v8::HandleScope<'s>,
        bytes: &[u8],
    ) -> Option<v8::Local<'s, v8::String>> {
        if bytes.len() > CACHED_BYTES_MAX {
            return new_string(scope, bytes, v8::NewStringType::Normal);
        }
        let hash = hash(bytes);
        let slot = &mut self.slots[(hash >> 32) as usize % SLOTS];
        if slot.seen == hash {
            if let Some(string) = &slot.string
                && *slot.bytes == *bytes
            {
                return Some(v8::Local::new(scope, string));
            }
        } else if !self.keep_at_once {
            slot.seen = hash;
            slot.string = None;
            return new_string(scope, bytes, v8::NewStringType::Normal);
        }
        let string = new_string(scope, bytes, v8::NewStringType::Internalized)?;
        slot.seen = hash;
        slot.bytes = bytes.into();
        slot.string = Some(v8::Global::new(scope, string));
        Some(string)
    }
}

/// None: longer than a V8 string can be.
pub fn new_string<'s>(
    scope: &mut v8::HandleScope<'s>,
    bytes: &[u8],
    kind: v8::NewStringType,
) -> Option<v8::Local<'s, v8::String>> {
    if bytes.is_ascii() {
        v8::String::new_from_one_byte(scope, bytes, kind)
    } else {
        v8::String::new_from_utf8(scope, bytes, kind)
    }
}

#[inline]
fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = WordHasher(bytes.len() as u64);
    hasher.write(bytes);
    hasher.finish()
}

/// A word at a time, for short keys of our own; the slot compares the bytes in any case.
struct WordHasher(u64);

impl Hasher for WordHasher {
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        let mut chunks = bytes.chunks_exact(8);
        for chunk in &mut chunks {
            let mut word = [0; 8];
            word.copy_from_slice(chunk);
            self.mix(u64::from_le_bytes(word));
        }
        let rest = chunks.remainder();
        if !rest.is_empty() {
            let mut word = [0; 8];
            word[..rest.len()].copy_from_slice(rest);
            self.mix(u64::from_le_bytes(word));
        }
    }

    #[inline]
    fn finish(&self) -> u64 {
        let folded = self.0 ^ (self.0 >> 29);
        folded.max(1)
    }
}

impl WordHasher {
    #[inline]
    fn mix(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}
