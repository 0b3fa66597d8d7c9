//! Expressions: an operator of the table with arguments that mostly have the right type.

use bson::{Bson, Document, Timestamp, doc};

use super::Generator;
use super::operators::OPERATORS;

const ZONES: &[&str] = &[
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "+05:30",
    "-0330",
    "+02",
    "Asia/Kolkata",
    "No/Such",
    "Australia/Lord_Howe",
    "",
    "GMT",
    "Etc/GMT+5",
    "EST5EDT",
    "Z",
    "+24:00",
    "-12:60",
    "+1",
    "Antarctica/Troll",
    "europe/berlin",
];
const FORMATS: &[&str] = &[
    "%Y-%m-%d",
    "%H:%M:%S.%L",
    "%G-W%V-%u",
    "%j %U %w %z %Z",
    "%d/%m/%Y",
    "%%",
    "%q",
    "%",
    "%Y-%m-%dT%H:%M:%S.%LZ",
    "%b %B",
    "",
    "%Y%m%d%H%M%S%L%z",
    "%d %b %Y",
    "%G %V %u",
    "%G-%j",
    "%Y %j",
    "%Y-%m-%d %Z",
    "a%Yb",
    "\u{e9}%Y",
    "%H",
    "%y",
];
const UNITS: &[&str] = &[
    "year",
    "quarter",
    "month",
    "week",
    "day",
    "hour",
    "minute",
    "second",
    "millisecond",
    "nosuch",
];
const WEEKDAYS: &[&str] = &["mon", "Sunday", "FRI", "wednesday", "nosuch"];
const DATE_STRINGS: &[&str] = &[
    "2024-02-29",
    "2024-02-29T12:34:56Z",
    "2024-02-29T12:34:56.789+02:00",
    "29/02/2024",
    "2023-02-29",
    "2024-06-01 10:00",
    "",
    "nonsense",
    "2020-W10-3",
    "2024-01-31T10:00:00 Europe/Berlin",
    "2024-01-31T10:00:00.123456Z",
    "20240131T101112Z",
    "2024-031",
    "2024-W05-3",
    "31 Jan 2024",
    "January 31, 2024",
    "Mon, 05 Feb 2024 10:00:00 +0100",
    "9999-12-31T23:59:59Z",
    "10000-01-01",
    "0000-00-00",
    "2024-13-01",
    "2024-02-29T25:00",
    "2024-02-29 12:34 PM",
    "1709210096",
    "@1709210096",
    "2024-6-1",
    "2024-02-29T12:34:56-0330",
    "2024-02-29T12:34:56 EST",
    "2024",
    "now",
];
const TYPES: &[&str] = &[
    "double", "string", "bool", "date", "int", "long", "decimal", "objectId", "array", "object",
    "nosuch", "null",
];
/// Patterns with more in them than the stored ones have.
const PATTERNS: &[&str] = &[
    "a",
    "(a)(b)?",
    "[",
    "^$",
    "b|c",
    "",
    "(?i)A",
    "\\v",
    "\\012",
    "\\R",
    "\\B",
    "\\bA",
    "(?R)",
    "(?<n>a)(b)?",
    "[[:alpha:]]+",
    "\\p{L}",
    "\\p{Lu}b",
    "b{1,2}",
    "(a|b)*c",
    "(?=a)",
    "(?<!a)b",
    "(?<=a)b",
    "\\d+",
    "\\",
    "(",
    "a**",
    "\\Qa,b\\E",
    ".",
    "\\X",
    "\\x41",
    "\\x{65e5}",
    "(a)\\1?",
    "\\w+",
    "\\W",
    "[^a]",
    "a++b",
    "(?>a|ab)c",
    "(?#c)a",
    "\\K",
    "a\\Kb",
    "\\h",
    "\\N",
    "(?|(a)|(b))",
    "x$",
    "x\\z",
    "(*UCP)\\w",
    "(?x) a b",
];
/// What $trim and its like take away.
const TRIMMED: &[&str] = &[
    "", " ", "a", "ab", "\u{0}", "é", "日", "\t\n", "😀", "a ", "c,b", "\u{a0}", "10",
];
/// Fields as expressions name them.
const REFERENCES: &[&str] = &[
    "$a",
    "$b",
    "$c",
    "$d",
    "$e",
    "$_id",
    "$a.x",
    "$b.y",
    "$a.x.y",
    "$missing",
    "$a",
    "$b",
    "$c",
    "$$ROOT",
    "$$CURRENT.a",
    "$a.0",
    "$$ROOT.b",
    "$c.x",
    "$$NOSUCH",
    "$",
    "$$",
    "$a.$b",
];

impl Generator {
    /// An expression of at most this many operators in each other.
    pub fn expression(&mut self, depth: usize) -> Bson {
        let (name, signature, _) = *self.random.pick(OPERATORS);
        self.operation(name, signature, depth)
    }

    fn operation(&mut self, name: &'static str, signature: &str, depth: usize) -> Bson {
        if let Some(bound) = self.binding(name, depth) {
            return doc! { name: bound }.into();
        }
        let arguments = match signature.contains(':') {
            true => self.named(signature, depth).into(),
            false => self.listed(signature, depth),
        };
        doc! { name: arguments }.into()
    }

    fn listed(&mut self, signature: &str, depth: usize) -> Bson {
        let letters: Vec<char> = signature.chars().collect();
        let mut arguments = Vec::new();
        for (at, &letter) in letters.iter().enumerate() {
            let count = match letters.get(at + 1) {
                _ if "*?".contains(letter) => 0,
                Some('*') => self.random.between(1, 3),
                Some('?') => self.random.between(0, 1),
                _ => 1,
            };
            for _ in 0..count {
                arguments.push(self.argument(letter, depth));
            }
        }
        // Rarely one too many or too few.
        match self.random.below(60) {
            0 => arguments.push(Bson::Int32(1)),
            1 => drop(arguments.pop()),
            _ => {}
        }
        // One argument may stand for itself, if it is not an array that would be taken for all.
        match &arguments[..] {
            [one] if !matches!(one, Bson::Array(_)) && self.random.percent(70) => one.clone(),
            _ => arguments.into(),
        }
    }

    fn named(&mut self, signature: &str, depth: usize) -> Document {
        let mut arguments = Document::new();
        for part in signature.split(' ') {
            let (name, letter) = part.split_once(':').expect("name:letter");
            let optional = name.ends_with('?');
            let left_out = if optional { 55 } else { 1 };
            if self.random.percent(left_out) {
                continue;
            }
            let letter = letter.chars().next().expect("a letter");
            arguments.insert(name.trim_end_matches('?'), self.argument(letter, depth));
        }
        if self.random.percent(1) {
            arguments.insert("nosuch", 1);
        }
        arguments
    }

    /// An argument of this kind: a literal, a field, or another operator's result.
    pub fn argument(&mut self, letter: char, depth: usize) -> Bson {
        // Some are read while parsing, or are of another form than an expression.
        if "kBO".contains(letter) {
            return self.literal(letter, depth);
        }
        if self.random.percent(6) {
            return self.wrong(depth);
        }
        if depth > 0 && self.random.percent(30) {
            let fits: Vec<_> = OPERATORS
                .iter()
                .filter(|(_, _, result)| {
                    letter == 'v' || *result == letter || (letter == 'h' && *result == 'n')
                })
                .collect();
            if !fits.is_empty() {
                let (name, signature, _) = **self.random.pick(&fits);
                return self.operation(name, signature, depth - 1);
            }
        }
        if "nsdaobvh".contains(letter) && self.random.percent(55) {
            return self.reference();
        }
        self.literal(letter, depth)
    }

    fn reference(&mut self) -> Bson {
        if !self.variables.is_empty() && self.random.percent(60) {
            return (*self.random.pick(&self.variables)).into();
        }
        (*self.random.pick(REFERENCES)).into()
    }

    fn wrong(&mut self, depth: usize) -> Bson {
        match self.random.below(5) {
            0 => "$missing".into(),
            1 => Bson::Null,
            2 => "$$REMOVE".into(),
            _ => self.constant(depth.min(1)),
        }
    }

    /// A stored value as an expression.
    fn constant(&mut self, depth: usize) -> Bson {
        self.value(depth)
    }

    fn literal(&mut self, letter: char, depth: usize) -> Bson {
        match letter {
            'n' => self.number(),
            'i' => match self.random.below(12) {
                0 => self.number(),
                1 => Bson::Int64(self.random.between(-3, 5)),
                2 => Bson::Double(self.random.between(-3, 5) as f64),
                3 => Bson::Int32(self.random.between(1950, 2050) as i32),
                _ => Bson::Int32(self.random.between(-3, 13) as i32),
            },
            'h' => match self.random.below(10) {
                0 => Bson::Int64(*self.random.pick(super::document::LONGS)),
                1 => Bson::Int32(self.random.between(-100_000, 100_000) as i32),
                2 => Bson::Double(self.random.between(-40_000, 40_000) as f64),
                3 => Bson::Int32(*self.random.pick(&[9999, 10_000, 32_767, 32_768, -1, 0, 1])),
                4 => Bson::Int64(self.random.between(-1 << 45, 1 << 45)),
                5 => self.number(),
                _ => self.literal('i', depth),
            },
            'c' => (*self.random.pick(TRIMMED)).into(),
            's' => self.string().into(),
            'd' => self.date(),
            'a' => self.list('v', depth),
            'A' => vec![self.list('v', depth), self.list('n', depth)].into(),
            'S' => self.list('s', depth),
            'o' => self.object(1).into(),
            'b' => Bson::Boolean(self.random.percent(50)),
            'z' => (*self.random.pick(ZONES)).into(),
            'f' => (*self.random.pick(FORMATS)).into(),
            'u' => (*self.random.pick(UNITS)).into(),
            'w' => (*self.random.pick(WEEKDAYS)).into(),
            'D' => (*self.random.pick(DATE_STRINGS)).into(),
            'r' => match self.random.percent(50) {
                true => self.regex(),
                false => (*self.random.pick(PATTERNS)).into(),
            },
            'm' => (*self.random.pick(&["i", "m", "s", "x", "", "z"])).into(),
            't' => match self.random.percent(80) {
                true => (*self.random.pick(TYPES)).into(),
                false => Bson::Int32(self.random.between(-1, 20) as i32),
            },
            'k' => (*self.random.pick(&["a", "x", "a.x", "y", ""])).into(),
            'O' => match self.random.below(10) {
                0 | 1 => doc! { "x": 1, "y": -1 }.into(),
                2 | 3 => doc! { "x": -1 }.into(),
                4 | 5 => Bson::Int32(-1),
                6 => doc! { "x.y": 1 }.into(),
                7 => self.number(),
                8 => doc! { *self.random.pick(&["", "$x", "x", "x."]): self.number() }.into(),
                _ => Bson::Int32(1),
            },
            'P' => {
                let time = self.random.below(5) as u32;
                Bson::Timestamp(Timestamp { time, increment: 3 })
            }
            'B' => {
                let branch = |generator: &mut Self| {
                    let case = generator.argument('b', depth.saturating_sub(1));
                    doc! { "case": case, "then": generator.argument('v', 0) }
                };
                vec![branch(self), branch(self)].into()
            }
            _ => self.constant(depth.min(2)),
        }
    }

    fn list(&mut self, letter: char, depth: usize) -> Bson {
        let count = self.random.below(4);
        let items = (0..count).map(|_| self.argument(letter, depth.saturating_sub(1)));
        items.collect::<Vec<_>>().into()
    }

    /// The operators that bind variables.
    fn binding(&mut self, name: &str, depth: usize) -> Option<Document> {
        let inner = depth.saturating_sub(1);
        Some(match name {
            "$let" => {
                let vars = doc! { "v": self.argument('v', inner) };
                doc! { "vars": vars, "in": self.with(&["$$v"], 'v', inner) }
            }
            "$map" => {
                let input = self.argument('a', inner);
                doc! { "input": input, "in": self.with(&["$$this", "$$this.x"], 'v', inner) }
            }
            "$filter" => {
                let input = self.argument('a', inner);
                let cond = self.with(&["$$this", "$$this.x"], 'b', inner);
                let mut filter = doc! { "input": input, "cond": cond };
                if self.random.percent(20) {
                    filter.insert("limit", self.argument('i', 0));
                }
                filter
            }
            "$reduce" => {
                let input = self.argument('a', inner);
                let first = self.argument('v', 0);
                let each = self.with(&["$$this", "$$value"], 'v', inner);
                doc! { "input": input, "initialValue": first, "in": each }
            }
            _ => return None,
        })
    }

    /// An operation that may name these variables.
    fn with(&mut self, variables: &[&'static str], letter: char, depth: usize) -> Bson {
        let before = self.variables.len();
        self.variables.extend(variables);
        let fits: Vec<_> = OPERATORS
            .iter()
            .filter(|(.., result)| letter == 'v' || *result == letter)
            .collect();
        let (name, signature, _) = **self.random.pick(&fits);
        let inner = self.operation(name, signature, depth);
        self.variables.truncate(before);
        inner
    }
}
