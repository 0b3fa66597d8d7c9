//! `$geoNear` over measurements. Buckets are found by an index over places in their metadata, and their
//! measurements come in that order; places that measurements have are measured one by one and sorted.

use std::sync::Arc;

use banyan_document::{DocumentWriter, Path, elements, field};
use banyan_geo::near::{Near, Unit};
use banyan_geo::parse::{self, GeoError};
use banyan_geo::{EARTH_RADIUS_METERS, Shape, distance};
use bson::{RawBsonRef, RawDocument, RawDocumentBuf, rawdoc};

use super::matching::Match;
use super::member::Member;
use super::near_query::{GeoNear, NearFields};
use super::sort;
use super::stage::{Division, Stage};
use super::stage_run::{Flow, Next, StageRun, Start};
use super::unpack_bucket::UnpackBucket;
use crate::budget::Budget;
use crate::context::Context;
use crate::error::{ErrorKind, QueryError};
use crate::expression::value::error;
use crate::filter::{Filter, metered};
use crate::metadata::Metadata;

const NAME: &str = "$_internalGeoNearDistance";

/// Puts what finds and measures them into the place of a `$geoNear` over what is unpacked.
pub(super) fn resolve(members: &mut Vec<Member>, context: &Context) -> Result<(), QueryError> {
    let [first, second, ..] = &members[..] else {
        return Ok(());
    };
    let (Some(unpack), Some(near)) = (
        first.stage.get::<UnpackBucket>(),
        second.stage.get::<GeoNear>(),
    ) else {
        return Ok(());
    };
    let Some(key) = &near.key else {
        return error(
            5892921,
            "Must specify 'key' option for $geoNear on a time-series collection",
        );
    };
    if !near.source.is_empty() {
        return error(
            1938439,
            "Must not specify 'query' for $geoNear on a time-series collection; use $match instead",
        );
    }
    let stages = match unpack.meta_path(key) {
        Some(path) => of_metadata(unpack, near, path),
        None => of_measurements(unpack, near, key, context)?,
    };
    let slots = second.slots;
    let stages = stages.into_iter().map(|stage| Member { stage, slots });
    members.splice(..2, stages);
    Ok(())
}

fn of_metadata(unpack: &UnpackBucket, near: &GeoNear, path: String) -> Vec<Arc<dyn Stage>> {
    let buckets = GeoNear {
        key: Some(path),
        fields: Arc::new(NearFields::for_metadata()),
        ..near.clone()
    };
    vec![
        Arc::new(buckets),
        Arc::new(unpack.handing_on_distances()),
        Arc::new(Told {
            fields: near.fields.clone(),
        }),
    ]
}

fn of_measurements(
    unpack: &UnpackBucket,
    near: &GeoNear,
    key: &str,
    context: &Context,
) -> Result<Vec<Arc<dyn Stage>>, QueryError> {
    if near.fields.place.is_some() {
        return error(
            5860208,
            "$geoNear 'includeLocs' is not supported on time-series metrics",
        );
    }
    let refused = |found: QueryError| {
        let message = format!("Unable to parse geoNear query: {}", found.message);
        QueryError::new(ErrorKind::Location(6330900), message)
    };
    let asked = near.filter(key).map_err(refused)?;
    let Some((path, asked)) = asked.near() else {
        return error(6330900, "Unable to parse geoNear query");
    };
    let (path, asked) = (path.clone(), asked.near.clone());
    let mut stages: Vec<Arc<dyn Stage>> = vec![Arc::new(unpack.clone())];
    if let Some(region) = region(key, &asked) {
        let filter = Filter::parse(&region, context)?;
        stages.push(Arc::new(Match::new(&region, filter)));
    }
    let mut order = DocumentWriter::new();
    order.append_i32(&near.fields.distance.to_string(), 1);
    let order = order.finish();
    stages.push(Arc::new(Measure {
        path,
        asked,
        fields: near.fields.clone(),
        budget: context.budget.clone(),
    }));
    sort::parse(RawBsonRef::Document(&order), context, &mut stages)?;
    Ok(stages)
}

/// What everything within the greatest distance lies in, and a little more: buckets can be asked for that.
fn region(key: &str, asked: &Near) -> Option<RawDocumentBuf> {
    const MORE: f64 = 1.000_001;
    let radius = match asked.unit {
        Unit::Meters => asked.max_distance / EARTH_RADIUS_METERS,
        Unit::Radians => asked.max_distance,
        Unit::Flat => return None,
    };
    if radius >= 1.5 {
        return None;
    }
    let flat = asked.center.flat;
    let circle = rawdoc! { "$centerSphere": [[flat.x, flat.y], radius * MORE + 1e-9] };
    let mut out = DocumentWriter::new();
    out.begin_document(key);
    out.append_doc("$geoWithin", &circle);
    out.end();
    Some(out.finish())
}

/// Tells measurements how far they are away, and drops those that are nowhere, too close or too far.
#[derive(Debug)]
struct Measure {
    path: Path,
    asked: Near,
    fields: Arc<NearFields>,
    budget: Budget,
}

impl Measure {
    /// In the unit that was asked in; `None`: the value is no point.
    fn distance(&self, value: RawBsonRef<'_>) -> Result<Option<f64>, QueryError> {
        if !matches!(value, RawBsonRef::Document(_) | RawBsonRef::Array(_)) {
            return Ok(None);
        }
        let center = &self.asked.center;
        metered(&self.budget, |meter| {
            let shape = match parse::stored(value, meter) {
                Ok(shape @ Shape::Point(_)) => shape,
                Err(GeoError::Ended) => return Err(GeoError::Ended),
                _ => return Ok(None),
            };
            let spherical = || match center.on_sphere() {
                Some(center) => distance::spherical(&center.point, &shape, meter),
                None => Ok(None),
            };
            Ok(match self.asked.unit {
                Unit::Flat => distance::flat(&center.flat, &shape),
                Unit::Radians => spherical()?,
                Unit::Meters => spherical()?.map(|radians| radians * EARTH_RADIUS_METERS),
            })
        })
    }
}

fn value_at<'d>(document: &'d RawDocument, path: &Path) -> Option<RawBsonRef<'d>> {
    let (first, rest) = path.parts().split_first()?;
    rest.iter()
        .try_fold(field(document, first)?, |value, part| {
            field(value.as_document()?, part)
        })
}

impl Stage for Measure {
    fn name(&self) -> &'static str {
        NAME
    }

    fn serialize(&self, out: &mut DocumentWriter) {
        out.begin_document(NAME);
        out.append_str("key", &self.path.to_string());
        let flat = self.asked.center.flat;
        out.begin_array("near");
        out.push(RawBsonRef::Double(flat.x));
        out.push(RawBsonRef::Double(flat.y));
        out.end();
        out.append_str("distanceField", &self.fields.distance.to_string());
        out.end();
    }

    fn split(&self) -> Division {
        Division::Shards
    }

    fn run(self: Arc<Self>, _: &Start<'_>) -> Result<Box<dyn StageRun>, QueryError> {
        Ok(Box::new(MeasureRun(self)))
    }
}

struct MeasureRun(Arc<Measure>);

impl StageRun for MeasureRun {
    fn push(&mut self, document: &RawDocument, next: &mut Next<'_>) -> Result<Flow, QueryError> {
        let stage = &*self.0;
        let Some(value) = value_at(document, &stage.path) else {
            return Ok(Flow::Continue);
        };
        let asked = stage.asked.min_distance..=stage.asked.max_distance;
        match stage.distance(value)? {
            Some(distance) if asked.contains(&distance) => {
                let told = stage.fields.write(document, distance, value);
                next.push(&told)
            }
            _ => Ok(Flow::Continue),
        }
    }
}

/// Puts what a bucket's measurements were told of it into the fields that were asked for.
#[derive(Debug)]
struct Told {
    fields: Arc<NearFields>,
}

impl Stage for Told {
    fn name(&self) -> &'static str {
        NAME
    }

    fn serialize(&self, out: &mut DocumentWriter) {
        out.begin_document(NAME);
        out.append_str("distanceField", &self.fields.distance.to_string());
        out.end();
    }

    fn split(&self) -> Division {
        Division::Shards
    }

    fn run(self: Arc<Self>, _: &Start<'_>) -> Result<Box<dyn StageRun>, QueryError> {
        Ok(Box::new(ToldRun(self)))
    }
}

struct ToldRun(Arc<Told>);

impl StageRun for ToldRun {
    fn push(&mut self, document: &RawDocument, next: &mut Next<'_>) -> Result<Flow, QueryError> {
        let value = |told: Metadata| field(document, told.field());
        let (Some(RawBsonRef::Double(distance)), Some(place)) =
            (value(Metadata::Distance), value(Metadata::Place))
        else {
            return next.push(document);
        };
        let mut rest = DocumentWriter::with_capacity(document.as_bytes().len());
        for element in elements(document) {
            let told = [Metadata::Distance, Metadata::Place];
            if !told.iter().any(|told| told.field() == element.name()) {
                rest.append_element(&element);
            }
        }
        next.push(&self.0.fields.write(&rest.finish(), distance, place))
    }
}
