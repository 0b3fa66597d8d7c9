//! Requests that name as many fields as a document can have take time in proportion: each case
//! would take minutes if every name were compared with every other.

use std::time::Duration;

use banyan_document::DocumentWriter;
use bson::{
    DateTime, RawArrayBuf, RawBson, RawBsonRef, RawDocument, RawDocumentBuf, Timestamp, rawdoc,
};

use crate::{Context, Expression, Filter, Pipeline, Projection, Update, UpdateContext, diff};

const FIELDS: usize = 30_000;

/// `{prefix0: value, prefix1: value, ...}`
fn wide<'v>(prefix: &str, value: impl Fn(usize) -> RawBsonRef<'v>) -> RawDocumentBuf {
    let mut writer = DocumentWriter::new();
    for n in 0..FIELDS {
        writer.append(&format!("{prefix}{n}"), value(n));
    }
    writer.finish()
}

fn ones(prefix: &str) -> RawDocumentBuf {
    wide(prefix, |_| RawBsonRef::Int32(1))
}

fn texts(prefix: &str) -> Vec<String> {
    (0..FIELDS).map(|n| format!("{prefix}{n}")).collect()
}

fn numbers(numbers: impl IntoIterator<Item = i32>) -> RawArrayBuf {
    let mut array = RawArrayBuf::new();
    numbers.into_iter().for_each(|n| array.push(n));
    array
}

fn quick<T>(what: &str, work: impl FnOnce() -> T) -> T {
    let start = time_on_a_core();
    let result = work();
    let taken = time_on_a_core() - start;
    assert!(taken < Duration::from_secs(4), "{what} took {taken:?}");
    result
}

/// What this thread has used, whatever else the machine does; Linux counts it in nanoseconds.
fn time_on_a_core() -> Duration {
    let counts = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    let used = counts.split(' ').next().unwrap();
    Duration::from_nanos(used.parse().unwrap())
}

fn count(document: &RawDocument) -> usize {
    document.iter().count()
}

#[test]
fn wide_projections() {
    let document = ones("f");
    let nested = rawdoc! { "a": document.clone() };
    let context = Context::default();
    quick("inclusion", || {
        let projection = Projection::parse(&ones("f"), &context).unwrap();
        let found = projection.apply(&document, None).unwrap();
        assert_eq!(count(&found), FIELDS);
    });
    quick("inclusion below", || {
        let projection = Projection::parse(&ones("a.f"), &context).unwrap();
        let found = projection.apply(&nested, None).unwrap();
        assert_eq!(count(found.get_document("a").unwrap()), FIELDS);
    });
    let matcher = rawdoc! { "$elemMatch": { "$gt": 1 } };
    quick("$elemMatch", || {
        let spec = wide("f", |_| RawBsonRef::Document(&matcher));
        let projection = Projection::parse(&spec, &context).unwrap();
        assert_eq!(count(&projection.apply(&document, None).unwrap()), 0);
    });
    let computed = rawdoc! { "b": { "$literal": 2 } };
    quick("computed below", || {
        let spec = wide("g", |_| RawBsonRef::Document(&computed));
        let projection = Projection::parse(&spec, &context).unwrap();
        let found = projection.apply(&document, None).unwrap();
        assert_eq!(count(&found), FIELDS);
    });
}

#[test]
fn wide_stages() {
    let document = ones("f");
    let run = |stage: RawDocumentBuf| {
        let pipeline = Pipeline::parse(&[&*stage], &Context::default()).unwrap();
        let input = std::iter::once(Ok::<_, crate::QueryError>(&*document));
        let found = pipeline.run(input, None).unwrap().next().unwrap();
        count(&found.unwrap())
    };
    let fields = quick("$project", || run(rawdoc! { "$project": ones("f") }));
    assert_eq!(fields, FIELDS);
    let paths = texts("$f");
    let computed = wide("g", |n| RawBsonRef::String(&paths[n]));
    let fields = quick("computed", || run(rawdoc! { "$project": computed }));
    assert_eq!(fields, FIELDS);
    let fields = quick("$addFields", || run(rawdoc! { "$addFields": ones("f") }));
    assert_eq!(fields, FIELDS);
    let added = quick("new fields", || run(rawdoc! { "$set": ones("g.h") }));
    assert_eq!(added, FIELDS + 1);
    let mut names = RawArrayBuf::new();
    texts("f").iter().for_each(|name| names.push(name.as_str()));
    assert_eq!(quick("$unset", || run(rawdoc! { "$unset": names })), 0);
}

#[test]
fn wide_lets() {
    let names = texts("$$v");
    let mut sum = RawArrayBuf::new();
    names.iter().for_each(|name| sum.push(name.as_str()));
    let variables = wide("v", |n| match n {
        0 => RawBsonRef::String("$a"),
        _ => RawBsonRef::Int32(1),
    });
    let document = rawdoc! { "a": 1 };
    let evaluate = |expression: &RawDocument, context: &Context| {
        let parsed = Expression::parse(RawBsonRef::Document(expression), context).unwrap();
        let arena = crate::expression::Arena::new();
        let value = parsed.evaluate(&document, &arena).unwrap();
        assert_eq!(value, Some(RawBsonRef::Int32(FIELDS as i32)));
    };
    let expression = rawdoc! { "$let": { "vars": variables, "in": { "$add": sum.clone() } } };
    quick("$let", || evaluate(&expression, &Context::default()));
    let given = texts("v")
        .into_iter()
        .map(|name| (name, Some(RawBson::Int32(1))));
    let context = Context {
        variables: given.collect(),
        ..Context::default()
    };
    quick("let", || evaluate(&rawdoc! { "$add": sum }, &context));
}

fn update(
    update: &RawDocument,
    filters: &[&RawDocument],
    document: &RawDocument,
) -> RawDocumentBuf {
    let update = RawBsonRef::Document(update);
    let update = Update::parse(update, filters, &Context::default()).unwrap();
    let context = UpdateContext::new(
        DateTime::from_millis(0),
        Timestamp {
            time: 1,
            increment: 1,
        },
    );
    let after = update.apply(document, &context).unwrap().unwrap();
    let wholes: Vec<&str> = update.wholes().iter().map(String::as_str).collect();
    let changed = diff::by_operators(document, &after, &wholes);
    assert!(!changed.to_description(false).is_empty());
    after
}

#[test]
fn wide_updates() {
    let document = ones("f");
    let inner = rawdoc! { "x": 1 };
    let documents = wide("f", |_| RawBsonRef::Document(&inner));
    let spec = rawdoc! { "$set": documents.clone() };
    let after = quick("$set", || update(&spec, &[], &document));
    assert_eq!(count(&after), FIELDS);
    let spec = rawdoc! { "$unset": documents.clone() };
    let after = quick("$unset", || update(&spec, &[], &document));
    assert_eq!(count(&after), 0);
    let two = rawdoc! { "x": 1, "y": 2 };
    let spec = rawdoc! { "$set": wide("f", |_| RawBsonRef::Document(&two)) };
    let after = quick("$set of documents", || update(&spec, &[], &documents));
    assert_eq!(count(&after), FIELDS);
    let targets = texts("g");
    let spec = rawdoc! { "$rename": wide("f", |n| RawBsonRef::String(&targets[n])) };
    let after = quick("$rename", || update(&spec, &[], &document));
    assert_eq!(count(&after), FIELDS);
    let targets = texts("a.g");
    let nested = rawdoc! { "a": document.clone() };
    let spec = rawdoc! { "$rename": wide("a.f", |n| RawBsonRef::String(&targets[n])) };
    let after = quick("$rename below", || update(&spec, &[], &nested));
    assert_eq!(count(after.get_document("a").unwrap()), FIELDS);
}

#[test]
fn wide_updates_of_arrays() {
    let document = rawdoc! { "a": numbers(0..FIELDS as i32) };
    let spec = rawdoc! { "$inc": ones("a.") };
    let after = quick("positions", || update(&spec, &[], &document));
    let last = after.get_array("a").unwrap().get_i32(FIELDS - 1);
    assert_eq!(last.unwrap(), FIELDS as i32);
    let mut writer = DocumentWriter::new();
    for n in 0..FIELDS {
        writer.append_i32(&format!("a.$[i{n}].x{n}"), 1);
    }
    let spec = rawdoc! { "$set": writer.finish() };
    let filters = texts("i").into_iter().map(|name| {
        let mut filter = DocumentWriter::new();
        filter.append_i32(&format!("{name}.y"), 1);
        filter.finish()
    });
    let filters: Vec<RawDocumentBuf> = filters.collect();
    let filters: Vec<&RawDocument> = filters.iter().map(|filter| &**filter).collect();
    let document = rawdoc! { "a": [{ "y": 1 }, { "y": 2 }] };
    let after = quick("arrayFilters", || update(&spec, &filters, &document));
    let first = after.get_array("a").unwrap().get_document(0).unwrap();
    assert_eq!(count(first), FIELDS + 1);
    let all = numbers(0..FIELDS as i32);
    let document = rawdoc! { "a": numbers((0..FIELDS as i32).rev()) };
    let reversed = rawdoc! { "$push": { "a": { "$each": all.clone(), "$sort": -1 } } };
    quick("$push", || update(&reversed, &[], &document));
    let added = rawdoc! { "$addToSet": { "a": { "$each": all.clone() } }, "$set": { "b": 1 } };
    quick("$addToSet", || update(&added, &[], &document));
    let pulled = quick("$pullAll", || {
        update(
            &rawdoc! { "$pullAll": { "a": all.clone() } },
            &[],
            &document,
        )
    });
    assert!(pulled.get_array("a").unwrap().is_empty());
    let pulled = rawdoc! { "$pull": { "a": { "$in": all } } };
    quick("$pull", || update(&pulled, &[], &document));
}

#[test]
fn wide_filters() {
    let context = Context::default();
    let document = rawdoc! { "a": FIELDS as i32 - 1 };
    let matches = |filter: RawDocumentBuf| {
        let filter = Filter::parse(&filter, &context).unwrap();
        filter.try_matches(&document).unwrap()
    };
    let all = numbers(0..FIELDS as i32);
    assert!(quick("$in", || matches(
        rawdoc! { "a": { "$in": all.clone() } }
    )));
    let mut branches = RawArrayBuf::new();
    (0..FIELDS as i32).for_each(|n| branches.push(rawdoc! { "a": n }));
    assert!(quick("$or", || matches(
        rawdoc! { "$or": branches.clone() }
    )));
    assert!(!quick("$and", || matches(rawdoc! { "$and": branches })));
    assert!(!quick("fields", || matches(ones("b"))));
    let mut writer = DocumentWriter::new();
    for _ in 0..FIELDS {
        writer.append_str("$regex", "x");
    }
    assert!(!quick("$regex", || matches(
        rawdoc! { "a": writer.finish() }
    )));
}
