//! Read preferences between the form of commands and the driver's.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bson::{Bson, Document, doc};
use mongodb::options::{ReadPreference, ReadPreferenceOptions, TagSet};

/// Reads `{mode, tags, maxStalenessSeconds, hedge}`. The driver's own reader knows the tags by
/// another name; hedging concerns routers only, which are told it as it was given.
pub fn parse(given: &Document) -> Result<ReadPreference> {
    let mut tag_sets = None;
    let mut max_staleness = None;
    for (name, value) in given {
        match (name.as_str(), value) {
            ("mode" | "hedge", _) => {}
            ("tags", Bson::Array(sets)) => {
                tag_sets = Some(sets.iter().map(tag_set).collect::<Result<Vec<_>>>()?);
            }
            ("tags", _) => bail!("a read preference's tags are an array of documents"),
            ("maxStalenessSeconds", value) => {
                max_staleness = Some(seconds(value).context("maxStalenessSeconds is a number")?);
            }
            (other, _) => bail!("unknown field of a read preference: {other}"),
        }
    }
    let mode = given.get_str("mode").context("a read preference's mode")?;
    if mode == "primary" {
        if tag_sets.is_some_and(|sets| sets.iter().any(|set| !set.is_empty()))
            || max_staleness.is_some()
        {
            bail!("Only empty tags are allowed with primary read preference");
        }
        return Ok(ReadPreference::Primary);
    }
    let options = Some(
        ReadPreferenceOptions::builder()
            .tag_sets(tag_sets)
            .max_staleness(max_staleness)
            .build(),
    );
    Ok(match mode {
        "primaryPreferred" => ReadPreference::PrimaryPreferred { options },
        "secondary" => ReadPreference::Secondary { options },
        "secondaryPreferred" => ReadPreference::SecondaryPreferred { options },
        "nearest" => ReadPreference::Nearest { options },
        other => bail!("unknown read preference mode {other}"),
    })
}

fn tag_set(given: &Bson) -> Result<TagSet> {
    let given = given.as_document().context("a tag set is a document")?;
    let mut set = HashMap::new();
    for (name, value) in given {
        let value = value.as_str().context("a tag is a string")?;
        set.insert(name.clone(), value.to_owned());
    }
    Ok(set)
}

fn seconds(given: &Bson) -> Option<Duration> {
    let seconds = match *given {
        Bson::Int32(seconds) => f64::from(seconds),
        // Past 2^53 seconds the exact number matters to nobody.
        Bson::Int64(seconds) => seconds as f64,
        Bson::Double(seconds) => seconds,
        _ => return None,
    };
    Duration::try_from_secs_f64(seconds).ok()
}

/// The form of commands.
pub fn told(preference: &ReadPreference) -> Document {
    let (mode, options) = match preference {
        ReadPreference::Secondary { options } => ("secondary", options.as_ref()),
        ReadPreference::PrimaryPreferred { options } => ("primaryPreferred", options.as_ref()),
        ReadPreference::SecondaryPreferred { options } => ("secondaryPreferred", options.as_ref()),
        ReadPreference::Nearest { options } => ("nearest", options.as_ref()),
        _ => ("primary", None),
    };
    let mut told = doc! { "mode": mode };
    let Some(options) = options else { return told };
    if let Some(sets) = &options.tag_sets {
        let sets = sets.iter().map(|set| {
            let tags = set
                .iter()
                .map(|(name, value)| (name.clone(), Bson::from(value.as_str())));
            Bson::Document(tags.collect())
        });
        told.insert("tags", sets.collect::<Vec<Bson>>());
    }
    if let Some(staleness) = options.max_staleness {
        told.insert(
            "maxStalenessSeconds",
            i64::try_from(staleness.as_secs()).unwrap_or(i64::MAX),
        );
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_preference_survives_the_drivers_form() {
        for given in [
            doc! { "mode": "primary" },
            doc! { "mode": "nearest" },
            doc! { "mode": "secondary", "tags": [{ "dc": "x" }, {}] },
            doc! { "mode": "secondaryPreferred", "maxStalenessSeconds": 90_i64 },
        ] {
            assert_eq!(told(&parse(&given).unwrap()), given);
        }
    }

    #[test]
    fn what_is_no_preference_is_refused() {
        for given in [
            doc! {},
            doc! { "mode": "best" },
            doc! { "mode": "primary", "tags": [{ "dc": "x" }] },
            doc! { "mode": "secondary", "tags": { "dc": "x" } },
            doc! { "mode": "secondary", "tags": [{ "dc": 1 }] },
            doc! { "mode": "secondary", "maxStalenessSeconds": -1 },
            doc! { "mode": "secondary", "tag": [] },
        ] {
            assert!(parse(&given).is_err(), "{given}");
        }
        assert!(parse(&doc! { "mode": "primary", "tags": [{}] }).is_ok());
    }
}
