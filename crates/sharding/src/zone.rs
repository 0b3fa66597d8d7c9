//! Zones: ranges of keys that must live on the shards that carry the zone's name.

use bson::RawDocument;

use crate::chunk::{ChunkError, ChunkRange};
use crate::shard_key::{ShardKey, ShardKeyPattern, show};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Zone {
    pub name: String,
    pub range: ChunkRange,
}

/// The zones of one collection, in key order; they don't overlap.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Zones(Vec<Zone>);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ZoneError {
    #[error("zone range {new} overlaps zone {existing} with range {range}")]
    Overlap {
        new: String,
        existing: String,
        range: String,
    },
    #[error(transparent)]
    Range(#[from] ChunkError),
    #[error("zone {0} has no valid field '{1}'")]
    Field(String, &'static str),
}

impl Zone {
    /// Reads a document of config.tags: `{ns, min, max, tag}`.
    pub fn parse(pattern: &ShardKeyPattern, document: &RawDocument) -> Result<Self, ZoneError> {
        let wrong = |name: &'static str| ZoneError::Field(show(document), name);
        let min = document.get_document("min").map_err(|_| wrong("min"))?;
        let max = document.get_document("max").map_err(|_| wrong("max"))?;
        let name = document
            .get_str("tag")
            .map_err(|_| wrong("tag"))?
            .to_owned();
        Ok(Zone {
            name,
            range: ChunkRange::parse(pattern, min, max)?,
        })
    }
}

impl Zones {
    pub fn new(zones: impl IntoIterator<Item = Zone>) -> Result<Self, ZoneError> {
        let mut sorted: Vec<Zone> = zones.into_iter().collect();
        sorted.sort_by(|a, b| a.range.min.cmp(&b.range.min));
        for (left, right) in sorted.iter().zip(sorted.iter().skip(1)) {
            if left.range.overlaps(&right.range) {
                return Err(ZoneError::Overlap {
                    new: right.range.to_string(),
                    existing: left.name.clone(),
                    range: left.range.to_string(),
                });
            }
        }
        Ok(Zones(sorted))
    }

    pub fn iter(&self) -> impl Iterator<Item = &Zone> {
        self.0.iter()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The zone that a chunk lies in as a whole; none for a chunk outside of all zones or
    /// across the border of one, which must be cut first.
    pub fn of(&self, range: &ChunkRange) -> Option<&str> {
        let zone = self.0.iter().find(|zone| zone.range.overlaps(range))?;
        zone.range.covers(range).then_some(zone.name.as_str())
    }

    /// The borders of zones strictly inside a chunk, in key order.
    pub fn borders_inside(&self, range: &ChunkRange) -> Vec<ShardKey> {
        let mut borders = Vec::new();
        for zone in &self.0 {
            for border in [&zone.range.min, &zone.range.max] {
                let inside = range.min < *border && *border < range.max;
                if inside && borders.last() != Some(border) {
                    borders.push(border.clone());
                }
            }
        }
        borders
    }
}
