//! Which views may stand on which: never on themselves, not too many on each other, and all with
//! one collation.

use std::collections::HashMap;

use banyan_document::Collator;
use bson::RawDocument;

use super::{DEPTH_MAX, View};
use crate::context::Context;
use crate::error::{ErrorKind, QueryError};
use crate::pipeline::Pipeline;

/// More bytes may not stand in the pipelines of views on each other.
const BYTES_MAX: usize = 16_000_000;

/// What counts of a view among the others of its database.
#[derive(Clone, Debug)]
pub struct Node {
    /// The collections and views of the same database that it reads.
    pub reads: Vec<String>,
    pub collator: Option<Collator>,
    /// Of its pipeline.
    pub bytes: usize,
}

impl Node {
    /// Of a view whose pipeline has been parsed.
    pub fn new(view: &View, database: &str, pipeline: &Pipeline) -> Node {
        let read = pipeline.collections_read().into_iter();
        let own = read.filter(|(other, _)| other.as_deref().is_none_or(|other| other == database));
        let mut reads = vec![view.on.clone()];
        reads.extend(own.map(|(_, name)| name));
        Node {
            reads,
            collator: view.collator.clone(),
            bytes: view.bytes(),
        }
    }

    /// Of a view that is there already. Of a pipeline that cannot be read any more, nothing counts
    /// but what it begins with.
    pub fn known(view: &View, database: &str, context: &Context) -> Node {
        let stages: Vec<&RawDocument> = view.stages.iter().map(|stage| &**stage).collect();
        let pipeline = Pipeline::parse(&stages, context).unwrap_or_default();
        Node::new(view, database, &pipeline)
    }
}

/// The longest and the largest way from a view to where it ends.
#[derive(Clone, Copy, Default)]
struct Reach {
    views: usize,
    bytes: usize,
}

impl Reach {
    fn max(self, other: Reach) -> Reach {
        Reach {
            views: self.views.max(other.views),
            bytes: self.bytes.max(other.bytes),
        }
    }
}

/// Whether a new view may be among the others; `nodes` are all of them and it, by their names.
pub fn check(database: &str, name: &str, nodes: &HashMap<String, Node>) -> Result<(), QueryError> {
    let Some(node) = nodes.get(name) else {
        return Ok(());
    };
    if let Some(way) = cycle(name, nodes) {
        let named = std::iter::once(name).chain(way);
        let shown: Vec<String> = named.map(|name| format!("{database}.{name}")).collect();
        return Err(QueryError::new(
            ErrorKind::GraphContainsCycle,
            format!("View cycle detected: {}", shown.join(" => ")),
        ));
    }
    let mut parents: HashMap<&str, Vec<&str>> = HashMap::new();
    for (parent, node) in nodes {
        for read in &node.reads {
            parents.entry(read).or_default().push(parent);
        }
    }
    let conflict = |above: &str, below: &str| {
        Err(QueryError::new(
            ErrorKind::OptionNotSupportedOnView,
            format!(
                "View {database}.{above} has conflicting collation with view {database}.{below}"
            ),
        ))
    };
    let differs = |other: &str| {
        nodes
            .get(other)
            .is_some_and(|other| other.collator != node.collator)
    };
    if let Some(below) = node.reads.iter().find(|below| differs(below)) {
        return conflict(name, below);
    }
    let above = parents.get(name).map_or(&[][..], Vec::as_slice);
    if let Some(above) = above.iter().find(|above| differs(above)) {
        return conflict(above, name);
    }
    let children = |name: &str| {
        let node = nodes.get(name);
        node.map_or(Vec::new(), |node| {
            node.reads.iter().map(String::as_str).collect()
        })
    };
    let above = |name: &str| parents.get(name).cloned().unwrap_or_default();
    let below = reach(name, nodes, &children, 0, &mut HashMap::new())?;
    let above = reach(name, nodes, &above, 0, &mut HashMap::new())?;
    // Both count the view itself.
    if below.views + above.views > DEPTH_MAX + 1 {
        return Err(too_deep());
    }
    if below.bytes + above.bytes > BYTES_MAX + node.bytes {
        return Err(QueryError::new(
            ErrorKind::ViewPipelineMaxSizeExceeded,
            format!("View pipeline is too large and exceeds the maximum size of {BYTES_MAX} bytes"),
        ));
    }
    Ok(())
}

fn too_deep() -> QueryError {
    QueryError::new(
        ErrorKind::ViewDepthLimitExceeded,
        format!("View depth limit exceeded; maximum depth is {DEPTH_MAX}"),
    )
}

/// The way from a view back to itself, both ends included.
fn cycle<'a>(name: &'a str, nodes: &'a HashMap<String, Node>) -> Option<Vec<&'a str>> {
    let mut seen = std::collections::HashSet::new();
    let mut way = vec![name];
    // Of each view on the way, the reads that are still to be followed.
    let reads = |name: &str| {
        nodes
            .get(name)
            .map_or(&[][..], |node| node.reads.as_slice())
            .iter()
    };
    let mut open = vec![reads(name)];
    while let Some(next) = open.last_mut() {
        let Some(read) = next.next() else {
            open.pop();
            way.pop();
            continue;
        };
        if read == name {
            way.push(read);
            return Some(way);
        }
        if seen.insert(read.as_str()) {
            way.push(read);
            open.push(reads(read));
        }
    }
    None
}

/// How far the views reach from one on, along `next`.
fn reach<'a>(
    name: &'a str,
    nodes: &'a HashMap<String, Node>,
    next: &dyn Fn(&str) -> Vec<&'a str>,
    depth: usize,
    known: &mut HashMap<&'a str, Reach>,
) -> Result<Reach, QueryError> {
    let Some(node) = nodes.get(name) else {
        return Ok(Reach::default());
    };
    if let Some(known) = known.get(name) {
        return Ok(*known);
    }
    // Definitions that nobody has checked may go round in circles.
    if depth > DEPTH_MAX {
        return Err(too_deep());
    }
    let mut furthest = Reach::default();
    for other in next(name) {
        furthest = furthest.max(reach(other, nodes, next, depth + 1, known)?);
    }
    let reach = Reach {
        views: furthest.views + 1,
        bytes: furthest.bytes + node.bytes,
    };
    known.insert(name, reach);
    Ok(reach)
}

#[cfg(test)]
mod tests {
    use bson::rawdoc;

    use super::*;

    fn nodes(views: &[(&str, &[&str])]) -> HashMap<String, Node> {
        let node = |reads: &[&str]| Node {
            reads: reads.iter().map(|read| (*read).to_owned()).collect(),
            collator: None,
            bytes: 10,
        };
        let views = views.iter();
        views
            .map(|(name, reads)| ((*name).to_owned(), node(reads)))
            .collect()
    }

    fn refusal(name: &str, nodes: &HashMap<String, Node>) -> (ErrorKind, String) {
        let error = check("t", name, nodes).unwrap_err();
        (error.kind, error.message)
    }

    #[test]
    fn a_view_never_stands_on_itself() {
        let itself = nodes(&[("v", &["v"])]);
        let (kind, text) = refusal("v", &itself);
        assert_eq!(kind, ErrorKind::GraphContainsCycle);
        assert_eq!(text, "View cycle detected: t.v => t.v => t.v");
        let round = nodes(&[("v", &["c", "w"]), ("w", &["x"]), ("x", &["c", "v"])]);
        let (_, text) = refusal("v", &round);
        assert_eq!(text, "View cycle detected: t.v => t.v => t.w => t.x => t.v");
        let twice = nodes(&[
            ("v", &["w", "x"]),
            ("w", &["y"]),
            ("x", &["y"]),
            ("y", &["c"]),
        ]);
        assert!(check("t", "v", &twice).is_ok());
    }

    #[test]
    fn a_view_in_the_middle_joins_two_chains() {
        let chain = |count: usize| {
            let names: Vec<String> = (0..=count).map(|n| format!("v{n}")).collect();
            let mut all = HashMap::new();
            for n in 1..=count {
                let reads: &[&str] = &[&names[n - 1]];
                all.extend(nodes(&[(&names[n], reads)]));
            }
            all
        };
        for place in ["v1", "v10", "v20"] {
            assert!(check("t", place, &chain(DEPTH_MAX)).is_ok(), "{place}");
        }
        for place in ["v1", "v10", "v21"] {
            let (kind, _) = refusal(place, &chain(DEPTH_MAX + 1));
            assert_eq!(kind, ErrorKind::ViewDepthLimitExceeded, "{place}");
        }
    }

    #[test]
    fn pipelines_on_each_other_count_together() {
        let mut all = nodes(&[("v", &["w"]), ("w", &["c"]), ("x", &["v"])]);
        for (name, bytes) in [("v", 2), ("w", 3), ("x", BYTES_MAX - 5)] {
            all.get_mut(name).unwrap().bytes = bytes;
        }
        assert!(check("t", "v", &all).is_ok());
        all.get_mut("w").unwrap().bytes += 1;
        assert_eq!(refusal("v", &all).0, ErrorKind::ViewPipelineMaxSizeExceeded);
    }

    #[test]
    fn views_on_each_other_have_one_collation() {
        let mut all = nodes(&[("v", &["w"]), ("w", &["c"])]);
        all.get_mut("w").unwrap().collator = Collator::parse(&rawdoc! { "locale": "en" }).unwrap();
        for name in ["v", "w"] {
            assert_eq!(refusal(name, &all).0, ErrorKind::OptionNotSupportedOnView);
        }
    }
}
