//! Values of every type, and documents of them.

use std::str::FromStr;

use bson::oid::ObjectId;
use bson::spec::BinarySubtype;
use bson::{
    Binary, Bson, DateTime, Decimal128, Document, JavaScriptCodeWithScope, Regex, Timestamp, doc,
};

use super::Generator;
use crate::notation;

const FIELDS: &[&str] = &["a", "b", "c", "d", "e"];
const INNER: &[&str] = &["x", "y", "z"];
/// Where documents have something, nothing, or an array on the way.
pub const PATHS: &[&str] = &[
    "a", "b", "c", "d", "a", "b", "e", "_id", "a.x", "a.y", "b.x", "c.y", "a.x.y", "a.0", "a.0.x",
    "b.1", "c.z", "missing",
];
pub const LONGS: &[i64] = &[
    0,
    1,
    2,
    3,
    -1,
    10,
    i64::MAX,
    i64::MIN,
    1 << 53,
    (1 << 53) + 1,
    4_294_967_296,
    -5,
    i64::MAX - 1,
    2_147_483_648,
];
pub const DOUBLES: &[f64] = &[
    0.0,
    -0.0,
    1.0,
    2.0,
    2.5,
    3.0,
    -1.5,
    0.1,
    1e300,
    5e-324,
    f64::NAN,
    f64::INFINITY,
    f64::NEG_INFINITY,
    9_007_199_254_740_993.0,
    9.223_372_036_854_776e18,
    2_147_483_648.0,
    1e21,
    123_456.789,
    -2.5,
    0.5,
];
pub const DECIMALS: &[&str] = &[
    "0",
    "-0",
    "1",
    "1.0",
    "1.50",
    "2",
    "0.1",
    "NaN",
    "Infinity",
    "-Infinity",
    "1E+3",
    "-7.5",
    "9223372036854775808",
    "1E-6176",
    "9.999999999999999999999999999999999E+6144",
    "1234567890123456789012345678901234",
    "2.5",
    "1E+400",
    "0.00",
];
pub const STRINGS: &[&str] = &[
    "",
    "a",
    "b",
    "ab",
    "abc",
    "Abc",
    "ABC",
    "é",
    "aéb日本",
    "10",
    "1.5",
    " a ",
    "a,b,c",
    "\u{0}",
    "2024-02-29T12:34:56.789Z",
    "x\ny",
    "-3",
    "z",
    "true",
    "5f5f5f5f5f5f5f5f5f5f5f5f",
    "0x1A",
    "ǅ",
    "1e5",
    "😀",
    "\u{a0}a\u{2003}\t",
    "\u{b}\r\na\u{feff}",
    "İıß",
    "1E+3",
    "Infinity",
    "9223372036854775808",
    " 7",
    "0b1",
];
/// Milliseconds: the epoch, before it, a leap day, week years, far off.
pub const DATES: &[i64] = &[
    0,
    -1,
    -86_400_001,
    1_709_210_096_789,
    1_704_067_199_999,
    1_704_067_200_000,
    1_609_459_200_000,
    253_402_300_799_999,
    -62_135_596_800_000,
    1_711_846_800_000,
    951_782_400_000,
];
/// Outside of the years that most of MongoDB can name.
const FAR_DATES: &[i64] = &[
    i64::MAX,
    i64::MIN,
    8_640_000_000_000_001,
    253_402_300_800_000,
    -62_167_219_200_000,
    -62_167_219_200_001,
    -99_999_999_999_999,
    971_890_963_200_000,
    971_890_963_199_999,
];
const REGEXES: &[(&str, &str)] = &[
    ("a", ""),
    ("^a", ""),
    ("B", "i"),
    ("^ab?c$", "i"),
    ("x.y", "s"),
    ("^y", "m"),
    ("", ""),
    ("[0-9]+", ""),
    ("é", ""),
];

impl Generator {
    /// Three to eight documents with their ids.
    pub fn documents(&mut self) -> Vec<Document> {
        let count = self.random.between(3, 8);
        (1..=count).map(|id| self.document(id as i32)).collect()
    }

    pub fn document(&mut self, id: i32) -> Document {
        let mut document = doc! { "_id": id };
        for field in FIELDS {
            if self.random.percent(60) {
                let value = self.value(3);
                document.insert(*field, value);
            }
        }
        document
    }

    /// A value that can be stored, with at most this many levels in it.
    pub fn value(&mut self, depth: usize) -> Bson {
        let nested = if depth > 0 { 14 } else { 0 };
        let kinds = [
            (24, 'n'),
            (14, 's'),
            (nested, 'a'),
            (nested, 'o'),
            (5, 'b'),
            (5, '0'),
            (5, 'd'),
            (9, '?'),
        ];
        match *self.random.weighted(&kinds) {
            'n' => self.number(),
            's' => self.string().into(),
            'a' => self.array(depth - 1),
            'o' => self.object(depth - 1).into(),
            'b' => Bson::Boolean(self.random.percent(50)),
            '0' => Bson::Null,
            'd' => self.date(),
            _ => self.rare(),
        }
    }

    pub fn number(&mut self) -> Bson {
        match *self
            .random
            .weighted(&[(50, 'i'), (15, 'l'), (20, 'd'), (12, 'D'), (3, 'I')])
        {
            'i' => Bson::Int32(self.random.between(-2, 6) as i32),
            'l' => Bson::Int64(*self.random.pick(LONGS)),
            'd' => Bson::Double(*self.random.pick(DOUBLES)),
            'I' => Bson::Int32(*self.random.pick(&[i32::MAX, i32::MIN, 100, -100, 65_535])),
            _ => self.decimal(),
        }
    }

    pub fn decimal(&mut self) -> Bson {
        let text = *self.random.pick(DECIMALS);
        Bson::Decimal128(Decimal128::from_str(text).expect("the pool holds decimals"))
    }

    pub fn string(&mut self) -> String {
        if self.random.percent(2) {
            return "long".repeat(self.random.between(50, 500) as usize);
        }
        (*self.random.pick(STRINGS)).to_owned()
    }

    pub fn date(&mut self) -> Bson {
        if self.random.percent(5) {
            let far = *self.random.pick(FAR_DATES);
            return DateTime::from_millis(far).into();
        }
        DateTime::from_millis(*self.random.pick(DATES)).into()
    }

    fn array(&mut self, depth: usize) -> Bson {
        let count = self.random.below(5);
        // Arrays of one kind are what most people keep.
        let kind = self.random.below(4);
        let item = |generator: &mut Self| match kind {
            0 => generator.number(),
            1 if depth > 0 => generator.object(depth - 1).into(),
            _ => generator.value(depth),
        };
        (0..count).map(|_| item(self)).collect::<Vec<_>>().into()
    }

    pub fn object(&mut self, depth: usize) -> Document {
        let mut document = Document::new();
        for _ in 0..self.random.below(4) {
            let name = *self.random.pick(INNER);
            let value = self.value(depth);
            document.insert(name, value);
        }
        document
    }

    pub fn object_id(&mut self) -> ObjectId {
        let mut bytes = [0x5f; 12];
        bytes[11] = self.random.below(3) as u8;
        ObjectId::from_bytes(bytes)
    }

    pub fn regex(&mut self) -> Bson {
        let (pattern, options) = *self.random.pick(REGEXES);
        Bson::RegularExpression(Regex {
            pattern: pattern.try_into().expect("no zero byte"),
            options: options.try_into().expect("no zero byte"),
        })
    }

    /// The types that one seldom meets.
    fn rare(&mut self) -> Bson {
        match self.random.below(11) {
            0 => Bson::Undefined,
            1 => Bson::MinKey,
            2 => Bson::MaxKey,
            3 => Bson::ObjectId(self.object_id()),
            4 => {
                let time = *self.random.pick(&[0, 1, 5, u32::MAX]);
                let increment = *self.random.pick(&[1, 2, u32::MAX]);
                Bson::Timestamp(Timestamp { time, increment })
            }
            5 => self.regex(),
            6 => {
                let subtype = *self.random.pick(&[0, 2, 3, 4, 5, 6, 128]);
                let length = *self.random.pick(&[0, 3, 16]);
                let bytes = (0..length).map(|_| self.random.below(4) as u8).collect();
                Bson::Binary(Binary {
                    subtype: BinarySubtype::from(subtype),
                    bytes,
                })
            }
            7 => Bson::JavaScriptCode("f()".to_owned()),
            8 => Bson::JavaScriptCodeWithScope(JavaScriptCodeWithScope {
                code: "f()".to_owned(),
                scope: doc! { "v": self.random.below(2) as i32 },
            }),
            9 => Bson::Symbol(self.string()),
            _ => notation::pointer("db.c", self.object_id()),
        }
    }

    pub fn path(&mut self) -> &'static str {
        self.random.pick::<&'static str>(PATHS)
    }

    /// A sort; it mostly ends with the id, so that it decides every order.
    pub fn sort(&mut self) -> Document {
        let mut sort = Document::new();
        for _ in 0..self.random.below(3) {
            let path = self.path();
            if !sort.contains_key(path) && path != "_id" {
                sort.insert(path, if self.random.percent(50) { 1 } else { -1 });
            }
        }
        if sort.is_empty() || self.random.percent(85) {
            sort.insert("_id", if self.random.percent(70) { 1 } else { -1 });
        }
        sort
    }
}
