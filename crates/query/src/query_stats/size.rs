//! How large the store may be, as operators write it.

/// Of the machine's memory.
pub const CACHE_SIZE_DEFAULT: &str = "1%";

/// `1%`, `100MB`, `0.5GB`: in bytes.
pub(super) fn parse(text: &str, memory_bytes: usize) -> Option<usize> {
    let digits = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: f64 = number.parse().ok()?;
    let factor = match unit.trim() {
        "%" if number <= 100.0 => memory_bytes as f64 / 100.0,
        "MB" => f64::from(1 << 20),
        "GB" => f64::from(1 << 30),
        _ => return None,
    };
    // What is left of the comma is meant; a conversion saturates.
    Some(((number * factor) as usize).min(memory_bytes))
}
