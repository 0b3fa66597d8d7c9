//! From text to BSON.

use std::iter::Peekable;
use std::str::{Chars, FromStr};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bson::oid::ObjectId;
use bson::spec::BinarySubtype;
use bson::{
    Binary, Bson, DateTime, Decimal128, Document, JavaScriptCodeWithScope, Regex, Timestamp,
};

/// What was expected, and the text from where it was not found.
#[derive(Debug, PartialEq, Eq)]
pub struct ParseError {
    pub expected: &'static str,
    pub before: String,
}

impl std::fmt::Display for ParseError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "expected {} before: {}", self.expected, self.before)
    }
}

impl std::error::Error for ParseError {}

type Result<T> = std::result::Result<T, ParseError>;

pub fn parse(text: &str) -> Result<Bson> {
    let mut parser = Parser {
        rest: text.chars().peekable(),
    };
    let value = parser.value()?;
    parser.space();
    match parser.rest.peek() {
        None => Ok(value),
        Some(_) => parser.fail("the end"),
    }
}

pub fn parse_document(text: &str) -> Result<Document> {
    match parse(text)? {
        Bson::Document(document) => Ok(document),
        _ => Err(ParseError {
            expected: "a document",
            before: text.to_owned(),
        }),
    }
}

/// The documents of an array.
pub fn split(text: &str) -> Result<Vec<Document>> {
    let fail = || ParseError {
        expected: "an array of documents",
        before: text.to_owned(),
    };
    let Bson::Array(items) = parse(text)? else {
        return Err(fail());
    };
    let document = |item| match item {
        Bson::Document(document) => Ok(document),
        _ => Err(fail()),
    };
    items.into_iter().map(document).collect()
}

struct Parser<'a> {
    rest: Peekable<Chars<'a>>,
}

impl Parser<'_> {
    fn fail<T>(&self, expected: &'static str) -> Result<T> {
        Err(ParseError {
            expected,
            before: self.rest.clone().take(40).collect(),
        })
    }

    fn space(&mut self) {
        while self.rest.next_if(|c| c.is_whitespace()).is_some() {}
    }

    fn take(&mut self, wanted: char) -> bool {
        self.space();
        self.rest.next_if_eq(&wanted).is_some()
    }

    fn need(&mut self, wanted: char, expected: &'static str) -> Result<()> {
        if self.take(wanted) {
            Ok(())
        } else {
            self.fail(expected)
        }
    }

    fn value(&mut self) -> Result<Bson> {
        self.space();
        match self.rest.peek() {
            Some('{') => self.document().map(Bson::Document),
            Some('[') => self.array(),
            Some('"') => self.string().map(Bson::String),
            Some('/') => self.regex(),
            Some('-' | '0'..='9') => self.number(),
            Some(c) if c.is_alphabetic() => self.word(),
            _ => self.fail("a value"),
        }
    }

    fn document(&mut self) -> Result<Document> {
        self.need('{', "{")?;
        let mut document = Document::new();
        while !self.take('}') {
            if !document.is_empty() {
                self.need(',', ", or }")?;
            }
            self.space();
            let name = match self.rest.peek() {
                Some('"') => self.string()?,
                _ => self.name(),
            };
            self.need(':', ":")?;
            let value = self.value()?;
            document.insert(name, value);
        }
        Ok(document)
    }

    fn array(&mut self) -> Result<Bson> {
        self.need('[', "[")?;
        let mut items = Vec::new();
        while !self.take(']') {
            if !items.is_empty() {
                self.need(',', ", or ]")?;
            }
            items.push(self.value()?);
        }
        Ok(Bson::Array(items))
    }

    fn name(&mut self) -> String {
        let plain = |c: &char| c.is_ascii_alphanumeric() || *c == '_' || *c == '$';
        let mut name = String::new();
        while let Some(c) = self.rest.next_if(plain) {
            name.push(c);
        }
        name
    }

    fn string(&mut self) -> Result<String> {
        self.need('"', "a string")?;
        let mut string = String::new();
        loop {
            match self.rest.next() {
                None => return self.fail("\""),
                Some('"') => return Ok(string),
                Some('\\') => string.push(self.escaped()?),
                Some(c) => string.push(c),
            }
        }
    }

    fn escaped(&mut self) -> Result<char> {
        match self.rest.next() {
            Some('n') => Ok('\n'),
            Some('u') => {
                let digits: String = self.rest.by_ref().take(4).collect();
                let code = u32::from_str_radix(&digits, 16).ok();
                code.and_then(char::from_u32)
                    .map_or_else(|| self.fail("four hex digits"), Ok)
            }
            Some(c) => Ok(c),
            None => self.fail("an escaped character"),
        }
    }

    fn regex(&mut self) -> Result<Bson> {
        self.need('/', "/")?;
        let mut pattern = String::new();
        loop {
            match self.rest.next() {
                None => return self.fail("/"),
                Some('/') => break,
                Some('\\') if self.rest.next_if_eq(&'/').is_some() => pattern.push('/'),
                Some('\\') => {
                    pattern.push('\\');
                    pattern.extend(self.rest.next());
                }
                Some(c) => pattern.push(c),
            }
        }
        let options = self.name();
        match (pattern.try_into(), options.try_into()) {
            (Ok(pattern), Ok(options)) => Ok(Bson::RegularExpression(Regex { pattern, options })),
            _ => self.fail("no zero byte in a regex"),
        }
    }

    /// An int, or with a point or an exponent a double; `-Infinity`.
    fn number(&mut self) -> Result<Bson> {
        let mut text = String::new();
        let part = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '-' | '+' | '.');
        while let Some(c) = self.rest.next_if(part) {
            text.push(c);
        }
        if let Ok(int) = text.parse() {
            return Ok(Bson::Int32(int));
        }
        let double = |text: &str| text.contains(['.', 'e']) || text == "-Infinity";
        match text.parse() {
            Ok(value) if double(&text) => Ok(Bson::Double(value)),
            _ => self.fail("a number"),
        }
    }

    fn word(&mut self) -> Result<Bson> {
        let word = self.name();
        Ok(match word.as_str() {
            "null" => Bson::Null,
            "undefined" => Bson::Undefined,
            "true" => Bson::Boolean(true),
            "false" => Bson::Boolean(false),
            "NaN" => Bson::Double(f64::NAN),
            "Infinity" => Bson::Double(f64::INFINITY),
            "new" => {
                self.space();
                return self.word();
            }
            _ => {
                self.need('(', "a known word or a call")?;
                let value = self.call(&word)?;
                self.need(')', ")")?;
                value
            }
        })
    }

    /// What stands between the parentheses of a type's constructor.
    fn call(&mut self, name: &str) -> Result<Bson> {
        match name {
            "MinKey" => Ok(Bson::MinKey),
            "MaxKey" => Ok(Bson::MaxKey),
            "NumberLong" => self.read().map(Bson::Int64),
            "NumberDecimal" => self.read::<Decimal128>().map(Bson::Decimal128),
            "ObjectId" => self.read::<ObjectId>().map(Bson::ObjectId),
            "ISODate" => {
                let text = self.string()?;
                let date = DateTime::parse_rfc3339_str(text);
                date.map(Bson::DateTime)
                    .or_else(|_| self.fail("an ISO date"))
            }
            "Date" => {
                let millis = self.bare()?;
                Ok(Bson::DateTime(DateTime::from_millis(millis)))
            }
            "Timestamp" => {
                let time = self.bare()?;
                self.need(',', ",")?;
                let increment = self.bare()?;
                Ok(Bson::Timestamp(Timestamp { time, increment }))
            }
            "BinData" => {
                let subtype = BinarySubtype::from(self.bare::<u8>()?);
                self.need(',', ",")?;
                self.space();
                let text = self.string()?;
                let bytes = STANDARD.decode(text).or_else(|_| self.fail("base64"))?;
                Ok(Bson::Binary(Binary { subtype, bytes }))
            }
            "BSONSymbol" => self.string().map(Bson::Symbol),
            "Code" => {
                let code = self.string()?;
                if !self.take(',') {
                    return Ok(Bson::JavaScriptCode(code));
                }
                self.space();
                let scope = self.document()?;
                Ok(Bson::JavaScriptCodeWithScope(JavaScriptCodeWithScope {
                    code,
                    scope,
                }))
            }
            "DBPointer" => self.pointer(),
            _ => self.fail("a type"),
        }
    }

    fn pointer(&mut self) -> Result<Bson> {
        let namespace = self.string()?;
        self.need(',', ",")?;
        let Bson::ObjectId(id) = self.value()? else {
            return self.fail("an ObjectId");
        };
        Ok(super::pointer(&namespace, id))
    }

    /// A value that its type reads from a quoted string.
    fn read<T: FromStr>(&mut self) -> Result<T> {
        let text = self.string()?;
        text.parse().or_else(|_| self.fail("a readable value"))
    }

    /// A whole number without quotes.
    fn bare<T: FromStr>(&mut self) -> Result<T> {
        self.space();
        let mut text = String::new();
        while let Some(c) = self.rest.next_if(|c| c.is_ascii_digit() || *c == '-') {
            text.push(c);
        }
        text.parse().or_else(|_| self.fail("a whole number"))
    }
}
