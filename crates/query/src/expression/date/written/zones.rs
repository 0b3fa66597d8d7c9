//! Zones by their letters.

/// In minutes east of Greenwich.
const ZONES: &[(&str, i32)] = &[
    ("UTC", 0),
    ("GMT", 0),
    ("UCT", 0),
    ("WET", 0),
    ("WEST", 60),
    ("BST", 60),
    ("CET", 60),
    ("CEST", 120),
    ("EET", 120),
    ("EEST", 180),
    ("IST", 120),
    ("IDT", 180),
    ("MSK", 180),
    ("MSD", 240),
    ("WAT", 60),
    ("CAT", 120),
    ("SAST", 120),
    ("EAT", 180),
    ("PKT", 300),
    ("WIB", 420),
    ("HKT", 480),
    ("WIT", 540),
    ("JST", 540),
    ("KST", 510),
    ("GST", 600),
    ("AWST", 480),
    ("AWDT", 540),
    ("ACST", 570),
    ("ACDT", 630),
    ("AEST", 600),
    ("AEDT", 660),
    ("NZST", 720),
    ("NZDT", 780),
    ("NST", -210),
    ("AST", -240),
    ("ADT", -180),
    ("EST", -300),
    ("EDT", -240),
    ("CST", -360),
    ("CDT", -300),
    ("MST", -420),
    ("MDT", -360),
    ("PST", -480),
    ("PDT", -420),
    ("AKST", -540),
    ("AKDT", -480),
    ("HST", -600),
    ("HDT", -570),
    ("SST", -660),
];

/// Seconds east of Greenwich. One letter is a zone of sailors; `J` is where one is.
pub(in crate::expression::date) fn abbreviated(name: &str) -> Option<i32> {
    if let [letter] = *name.to_ascii_uppercase().as_bytes() {
        let letter = i32::from(letter);
        let from = |first: u8| letter - i32::from(first) + 1;
        let hours = match letter as u8 {
            b'A'..=b'I' => from(b'A'),
            b'K'..=b'M' => from(b'A') - 1,
            b'N'..=b'Y' => -from(b'N'),
            b'Z' => 0,
            _ => return None,
        };
        return Some(hours * 3600);
    }
    let mut known = ZONES.iter();
    let (_, minutes) = known.find(|(zone, _)| zone.eq_ignore_ascii_case(name))?;
    Some(minutes * 60)
}
