//! Dates as people write them: what MongoDB reads beside ISO 8601.

use super::reader::{Fields, MONTHS, Reader, read_time};

/// Shorter than its first three letters no month is written, and `Sept` is another way.
const SHORT_MONTH: usize = 3;

/// `2020-01`, `2020/01/31`, `01/31/2020`, `Jan 31st, 2020` and `31 January 2020`; a time may stand
/// behind a day.
pub(super) fn parse(text: &str) -> Option<Fields> {
    let forms = [
        year_and_month,
        year_first,
        month_first,
        month_named,
        day_first,
    ];
    forms
        .into_iter()
        .find_map(|form| form(Reader { rest: text }))
}

fn year_and_month(mut reader: Reader<'_>) -> Option<Fields> {
    let year = reader.number(4, 4)?;
    reader.eat('-')?;
    let month = reader.number(1, 2)?;
    reader.rest.is_empty().then(|| Fields::on(year, month, 1))
}

fn year_first(mut reader: Reader<'_>) -> Option<Fields> {
    let year = reader.number(4, 4)?;
    reader.eat('/')?;
    let month = reader.number(1, 2)?;
    reader.eat('/')?;
    let day = reader.number(1, 2)?;
    read_time(reader, Fields::on(year, month, day))
}

fn month_first(mut reader: Reader<'_>) -> Option<Fields> {
    let month = reader.number(1, 2)?;
    reader.eat('/')?;
    let day = reader.number(1, 2)?;
    reader.eat('/')?;
    let year = reader.number(4, 4)?;
    read_time(reader, Fields::on(year, month, day))
}

fn month_named(mut reader: Reader<'_>) -> Option<Fields> {
    let month = month(&mut reader)?;
    gap(&mut reader)?;
    let day = ordinal(&mut reader)?;
    gap(&mut reader)?;
    let year = reader.number(4, 4)?;
    read_time(reader, Fields::on(year, month, day))
}

fn day_first(mut reader: Reader<'_>) -> Option<Fields> {
    let day = ordinal(&mut reader)?;
    gap(&mut reader)?;
    let month = month(&mut reader)?;
    gap(&mut reader)?;
    let year = reader.number(4, 4)?;
    read_time(reader, Fields::on(year, month, day))
}

/// `1`, `01` or `1st`.
fn ordinal(reader: &mut Reader<'_>) -> Option<u32> {
    let day = reader.number(1, 2)?;
    let suffix = ["st", "nd", "rd", "th"]
        .into_iter()
        .find_map(|suffix| reader.rest.strip_prefix(suffix));
    reader.rest = suffix.unwrap_or(reader.rest);
    Some(day)
}

/// Spaces, commas, dots or dashes between the parts.
fn gap(reader: &mut Reader<'_>) -> Option<()> {
    let rest = reader.rest.trim_start_matches([' ', ',', '.', '-']);
    (rest.len() < reader.rest.len()).then(|| reader.rest = rest)
}

fn month(reader: &mut Reader<'_>) -> Option<u32> {
    let letters = reader.rest.bytes().take_while(u8::is_ascii_alphabetic);
    let (name, rest) = reader.rest.split_at(letters.count());
    let is_it = |month: &&str| {
        name.eq_ignore_ascii_case(month)
            || name.eq_ignore_ascii_case(&month[..SHORT_MONTH])
            || (name.eq_ignore_ascii_case("sept") && **month == *"September")
    };
    let at = MONTHS.iter().position(is_it)?;
    reader.rest = rest;
    u32::try_from(at + 1).ok()
}
