//! Stories told across real processes live in `stories/`; this library is empty.
