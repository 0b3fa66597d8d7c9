//! Puts what the parts of a written date say together.

use chrono::{Datelike, Months, NaiveDate, NaiveDateTime, NaiveTime, TimeDelta, Weekday};
use regex::Captures;

use super::forms::{Form, Found, first};
use super::zones::abbreviated;
use crate::expression::date::calendar::MONTHS;
use crate::expression::date::zone::Zone;

/// A time that was written, and the zone that it names.
pub(in crate::expression::date) struct Written {
    pub local: NaiveDateTime,
    pub zone: Option<Zone>,
}

/// What has been said so far.
#[derive(Default)]
struct Said {
    year: Option<i32>,
    month: Option<u32>,
    day: Option<u32>,
    has_date: bool,
    time: Option<Time>,
    zone: Option<Zone>,
    weekday: Option<Weekday>,
    from_there: Steps,
}

#[derive(Clone, Copy, Default)]
struct Time {
    hour: u32,
    minute: u32,
    second: u32,
    millisecond: u32,
}

/// How far the time that is meant is from the one that is named.
#[derive(Default)]
struct Steps {
    months: i64,
    days: i64,
    milliseconds: i64,
}

/// Why no time can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::expression::date) enum Unread {
    /// A part has no form, is there twice, or says what there is not.
    Form,
    /// No day is named.
    Incomplete,
}

pub(in crate::expression::date) fn read(text: &str) -> Result<Written, Unread> {
    let said = parts_of(text).ok_or(Unread::Form)?;
    if said.year.is_none() || said.month.is_none() || said.day.is_none() {
        return Err(Unread::Incomplete);
    }
    said.finish().ok_or(Unread::Form)
}

fn parts_of(text: &str) -> Option<Said> {
    let mut said = Said::default();
    let mut rest = text;
    while let Some(found) = first(rest) {
        rest = rest.get(found.length..)?;
        said.take(&found)?;
    }
    rest.is_empty().then_some(said)
}

impl Said {
    fn take(&mut self, found: &Found<'_>) -> Option<()> {
        let parts = &found.parts;
        match found.form {
            Form::Gap => {}
            Form::Word => self.word(text(parts, "word")?),
            Form::Timestamp => self.timestamp(parts)?,
            Form::Time | Form::HalfDayTime => self.set_time(time(parts)?)?,
            Form::BareTime => match self.time {
                None => self.set_time(time(parts)?)?,
                Some(_) => self.year = number(parts.get(0)?.as_str()),
            },
            Form::Date => self.set_date(parts, true)?,
            Form::PlainDate => self.set_date(parts, false)?,
            Form::DateAndTime => {
                self.set_date(parts, true)?;
                self.set_time(time(parts)?)?;
            }
            Form::Ordinal => {
                // Only within January it is a day that there is: the month is the first one.
                self.begin_date()?;
                self.year = number(text(parts, "year")?);
                self.month = Some(1);
                self.day = number(text(parts, "ordinal")?);
            }
            Form::Week => self.week(parts)?,
            Form::Year => self.year = number(text(parts, "year")?),
            Form::Weekday => {
                self.time = None;
                self.weekday = Some(weekday(text(parts, "weekday")?)?);
            }
            Form::Offset => {
                let zone = Zone::Offset(offset(parts)?);
                self.set_zone(zone)?;
            }
            Form::Zone => {
                let seconds = abbreviated(text(parts, "zone")?)?;
                self.set_zone(Zone::Offset(seconds))?;
            }
            Form::Step => {
                let signs = text(parts, "signs").unwrap_or_default();
                let is_back = signs.bytes().filter(|sign| *sign == b'-').count() % 2 == 1;
                let count: i64 = number(text(parts, "count")?)?;
                let count = if is_back { -count } else { count };
                self.from_there.add(count, text(parts, "unit")?)?;
            }
            Form::WordStep => {
                let count = match &*text(parts, "word")?.to_ascii_lowercase() {
                    "next" => 1,
                    "this" => 0,
                    _ => -1,
                };
                let unit = text(parts, "unit")?;
                // The week that is meant begins on a Monday, wherever in it one is.
                if unit.eq_ignore_ascii_case("week") {
                    return None;
                }
                self.from_there.add(count, unit)?;
            }
            Form::Ago => self.from_there.turn(),
        }
        Some(())
    }

    fn word(&mut self, word: &str) {
        let time = |hour| {
            Some(Time {
                hour,
                ..Time::default()
            })
        };
        match &*word.to_ascii_lowercase() {
            "now" => {}
            "noon" => self.time = time(12),
            "yesterday" => {
                self.from_there.days -= 1;
                self.time = None;
            }
            "tomorrow" => {
                self.from_there.days += 1;
                self.time = None;
            }
            _ => self.time = None,
        }
    }

    fn timestamp(&mut self, parts: &Captures<'_>) -> Option<()> {
        self.begin_date()?;
        (self.year, self.month, self.day) = (Some(1970), Some(1), Some(1));
        self.set_zone(Zone::Offset(0))?;
        self.time = Some(Time::default());
        let seconds: i64 = number(text(parts, "seconds")?)?;
        let fraction = milliseconds(text(parts, "fraction").unwrap_or_default());
        let whole = seconds.checked_mul(1000)?;
        let steps = &mut self.from_there.milliseconds;
        *steps = steps.checked_add(whole)?.checked_add(i64::from(fraction))?;
        Some(())
    }

    fn begin_date(&mut self) -> Option<()> {
        (!self.has_date).then(|| self.has_date = true)
    }

    /// `completes`: of a year with less than four digits, the century is left out.
    fn set_date(&mut self, parts: &Captures<'_>, completes: bool) -> Option<()> {
        self.begin_date()?;
        if let Some(digits) = text(parts, "year") {
            let year: i32 = number(digits)?;
            let year = match (digits.len() < 4 && completes, year) {
                (true, 0..70) => year + 2000,
                (true, 70..100) => year + 1900,
                _ => year,
            };
            let is_negative = text(parts, "sign") == Some("-");
            self.year = Some(if is_negative { -year } else { year });
        }
        if let Some(month) = text(parts, "month") {
            self.month = number(month);
        }
        if let Some(name) = text(parts, "name") {
            self.month = Some(month(name)?);
        }
        match text(parts, "day") {
            Some(day) => self.day = number(day),
            // A month of a year begins with its first day.
            None if text(parts, "year").is_some() => self.day = Some(1),
            None => {}
        }
        Some(())
    }

    fn set_time(&mut self, time: Time) -> Option<()> {
        let is_first = self.time.is_none();
        self.time = Some(time);
        is_first.then_some(())
    }

    fn set_zone(&mut self, zone: Zone) -> Option<()> {
        let is_first = self.zone.is_none();
        self.zone = Some(zone);
        is_first.then_some(())
    }

    /// A day of a week, which may be one of the years around; without a day, the week's Monday.
    fn week(&mut self, parts: &Captures<'_>) -> Option<()> {
        self.begin_date()?;
        let year: i32 = number(text(parts, "year")?)?;
        let week: i64 = number(text(parts, "week")?)?;
        let day: i64 = text(parts, "weekday").map_or(Some(1), number)?;
        let first = NaiveDate::from_isoywd_opt(year, 1, Weekday::Mon)?;
        (self.year, self.month, self.day) = (Some(year), Some(1), Some(1));
        let begin = NaiveDate::from_ymd_opt(year, 1, 1)?;
        let to_first = first.signed_duration_since(begin).num_days();
        self.from_there.days += to_first + (week - 1) * 7 + day - 1;
        Some(())
    }

    fn finish(self) -> Option<Written> {
        let day = NaiveDate::from_ymd_opt(self.year?, self.month?, self.day?)?;
        let time = self.time.unwrap_or_default();
        let (hour, minute, second) = (time.hour, time.minute, time.second);
        let time = NaiveTime::from_hms_milli_opt(hour, minute, second, time.millisecond)?;
        let day = self.weekday.map_or(Some(day), |weekday| {
            let ahead = 7 + i64::from(weekday.num_days_from_monday())
                - i64::from(day.weekday().num_days_from_monday());
            day.checked_add_signed(TimeDelta::try_days(ahead % 7)?)
        })?;
        let local = self.from_there.after(day.and_time(time))?;
        let zone = self.zone;
        Some(Written { local, zone })
    }
}

impl Steps {
    fn add(&mut self, count: i64, unit: &str) -> Option<()> {
        let unit = unit.to_ascii_lowercase();
        let (steps, each) = match &*unit {
            "year" => (&mut self.months, 12),
            "month" => (&mut self.months, 1),
            "fortnight" | "forthnight" => (&mut self.days, 14),
            "week" => (&mut self.days, 7),
            "day" => (&mut self.days, 1),
            "hour" => (&mut self.milliseconds, 3_600_000),
            "min" | "minute" => (&mut self.milliseconds, 60_000),
            "sec" | "second" => (&mut self.milliseconds, 1000),
            _ => (&mut self.milliseconds, 1),
        };
        *steps = steps.checked_add(count.checked_mul(each)?)?;
        Some(())
    }

    /// The other way.
    fn turn(&mut self) {
        self.months = -self.months;
        self.days = -self.days;
        self.milliseconds = -self.milliseconds;
    }

    /// A day that the month does not have is one of the next.
    fn after(&self, time: NaiveDateTime) -> Option<NaiveDateTime> {
        let first = time.date().with_day(1)?;
        let months = Months::new(u32::try_from(self.months.unsigned_abs()).ok()?);
        let first = match self.months < 0 {
            true => first.checked_sub_months(months),
            false => first.checked_add_months(months),
        }?;
        let days = self.days.checked_add(i64::from(time.day0()))?;
        let day = first.checked_add_signed(TimeDelta::try_days(days)?)?;
        let span = TimeDelta::try_milliseconds(self.milliseconds)?;
        day.and_time(time.time()).checked_add_signed(span)
    }
}

fn text<'t>(parts: &Captures<'t>, name: &str) -> Option<&'t str> {
    parts.name(name).map(|part| part.as_str())
}

fn number<T: std::str::FromStr>(digits: &str) -> Option<T> {
    digits.parse().ok()
}

/// The first three digits behind a point.
fn milliseconds(digits: &str) -> u32 {
    let digits: String = digits.chars().chain("000".chars()).take(3).collect();
    number(&digits).unwrap_or_default()
}

fn time(parts: &Captures<'_>) -> Option<Time> {
    let part = |name| text(parts, name).map_or(Some(0), number);
    let hour = match text(parts, "half") {
        None => part("hour")?,
        Some(half) => {
            part("hour")? % 12
                + if half.eq_ignore_ascii_case("p") {
                    12
                } else {
                    0
                }
        }
    };
    Some(Time {
        hour,
        minute: part("minute")?,
        second: part("second")?,
        millisecond: milliseconds(text(parts, "fraction").unwrap_or_default()),
    })
}

fn month(name: &str) -> Option<u32> {
    const ROMAN: [&str; 12] = [
        "I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX", "X", "XI", "XII",
    ];
    let is_named = |month: &&str| {
        let short = name
            .get(..3)
            .is_some_and(|short| short.eq_ignore_ascii_case(month.get(..3).unwrap_or_default()));
        short && matches!(name.len(), 3 | 4) || name.eq_ignore_ascii_case(month)
    };
    let roman = ROMAN.iter().position(|roman| *roman == name);
    let at = roman.or_else(|| MONTHS.iter().position(is_named))?;
    u32::try_from(at + 1).ok()
}

fn weekday(name: &str) -> Option<Weekday> {
    name.parse().ok()
}

/// `5`, `05`, `530`, `0530`, `5:30` or `05:30:15` in seconds.
fn offset(parts: &Captures<'_>) -> Option<i32> {
    let written = text(parts, "offset")?;
    let (hours, minutes, seconds) = match written.split_once(':') {
        Some((hours, rest)) => {
            let (minutes, seconds) = rest.split_once(':').unwrap_or((rest, "0"));
            (hours, minutes, seconds)
        }
        None if written.len() > 2 => {
            let (hours, minutes) = written.split_at(written.len() - 2);
            (hours, minutes, "0")
        }
        None => (written, "0", "0"),
    };
    let minutes = if minutes.is_empty() { "0" } else { minutes };
    let part = number::<i32>;
    let total = part(hours)? * 3600 + part(minutes)? * 60 + part(seconds)?;
    match text(parts, "sign") {
        Some("-") => Some(-total),
        _ => Some(total),
    }
}
