//! All settings that there are, as they are kept.

use std::collections::HashMap;
use std::sync::Arc;

use banyan_document::element::items;
use bson::raw::CStr;
use bson::{RawArrayBuf, RawBsonRef, RawDocument, RawDocumentBuf, cstr, rawdoc};

use super::settings::QuerySettings;
use crate::error::{ErrorKind, QueryError};

/// The name of the parameter, and of the field by which a router tells shards.
pub const PARAMETER: &str = "querySettings";
/// The parameter's only field.
pub const ARRAY: &CStr = cstr!("settingsArray");

/// The settings of one shape, as they are kept.
#[derive(Debug, Clone, PartialEq)]
pub struct Configuration {
    /// As `queryShapeHash` shows it.
    pub hash: String,
    pub settings: QuerySettings,
    /// A query of the shape, if one was given.
    pub representative: Option<RawDocumentBuf>,
}

impl Configuration {
    fn parse(kept: &RawDocument) -> Option<Configuration> {
        let settings = kept.get_document("settings").ok()?;
        let representative = kept.get_document("representativeQuery").ok();
        Some(Configuration {
            hash: kept.get_str("queryShapeHash").ok()?.to_owned(),
            settings: QuerySettings::parse("settings", settings).ok()?,
            representative: representative.map(RawDocument::to_owned),
        })
    }

    /// As it is kept, and as clients are told.
    pub fn to_document(&self) -> RawDocumentBuf {
        let mut kept = rawdoc! {
            "queryShapeHash": self.hash.as_str(),
            "settings": self.settings.to_document(),
        };
        if let Some(representative) = &self.representative {
            kept.append(cstr!("representativeQuery"), representative.clone());
        }
        kept
    }
}

/// The settings of all shapes.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct KnownSettings {
    all: Vec<Arc<Configuration>>,
    by_hash: HashMap<[u8; 32], usize>,
}

impl KnownSettings {
    /// Out of the parameter's value; what is no configuration there is left out.
    pub fn of(value: &RawDocument) -> KnownSettings {
        let Some(RawBsonRef::Array(array)) = banyan_document::field(value, ARRAY.as_str()) else {
            return KnownSettings::default();
        };
        let documents = items(array).filter_map(|item| match item.value() {
            RawBsonRef::Document(kept) => Configuration::parse(kept),
            _ => None,
        });
        let mut known = KnownSettings::default();
        for configuration in documents {
            known.set(configuration);
        }
        known
    }

    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub fn all(&self) -> &[Arc<Configuration>] {
        &self.all
    }

    pub fn find(&self, hash: &[u8; 32]) -> Option<&Arc<Configuration>> {
        self.all.get(*self.by_hash.get(hash)?)
    }

    /// In the place of those of the same shape.
    pub fn set(&mut self, configuration: Configuration) {
        let Ok(hash) = parse_hash(&configuration.hash) else {
            return;
        };
        let configuration = Arc::new(configuration);
        match self.by_hash.get(&hash).and_then(|at| self.all.get_mut(*at)) {
            Some(known) => *known = configuration,
            None => {
                self.by_hash.insert(hash, self.all.len());
                self.all.push(configuration);
            }
        }
    }

    /// False if there were none.
    pub fn remove(&mut self, hash: &[u8; 32]) -> bool {
        let Some(at) = self.by_hash.remove(hash) else {
            return false;
        };
        self.all.remove(at);
        for place in self.by_hash.values_mut().filter(|place| **place > at) {
            *place -= 1;
        }
        true
    }

    /// The parameter's value.
    pub fn to_value(&self) -> RawDocumentBuf {
        let all = self.all.iter();
        let array: RawArrayBuf = all
            .map(|configuration| configuration.to_document())
            .collect();
        let mut value = RawDocumentBuf::new();
        value.append(ARRAY, array);
        value
    }
}

/// A hash as clients write it.
pub fn parse_hash(text: &str) -> Result<[u8; 32], QueryError> {
    let byte = |pair: &[u8]| {
        let pair = std::str::from_utf8(pair).ok()?;
        let is_hex = pair.len() == 2 && pair.bytes().all(|digit| digit.is_ascii_hexdigit());
        u8::from_str_radix(pair, 16).ok().filter(|_| is_hex)
    };
    let bytes: Option<Vec<u8>> = text.as_bytes().chunks(2).map(byte).collect();
    let bytes = bytes.ok_or_else(|| {
        QueryError::new(
            ErrorKind::BadValue,
            format!("Hash input is not a hex string: {text:?}"),
        )
    })?;
    let length = bytes.len();
    bytes.try_into().map_err(|_| {
        QueryError::new(
            ErrorKind::InvalidLength,
            format!("Unsupported hash length {length}, expected 32"),
        )
    })
}
