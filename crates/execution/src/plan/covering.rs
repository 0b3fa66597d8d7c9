//! What of a query the keys of an index answer, so that fewer documents need be read, or none.

use std::collections::BTreeSet;
use std::sync::Arc;

use banyan_query::filter::Filter;

use super::IndexBounds;
use crate::request::{Goal, Request};

/// The work that is left to do above a scan of an index.
#[derive(Debug, Clone)]
pub struct Covering {
    /// What of the filter is matched by the keys, beyond the bounds.
    pub key_filter: Option<Arc<Filter>>,
    /// What of it is matched by the documents.
    pub residual: Option<Arc<Filter>>,
    /// What of that is matched by those whose keys have settled what is asked of shapes; `None`: keys
    /// settle nothing.
    pub settled: Option<Settled>,
    /// The paths that `key_filter` looks at.
    pub filtered: BTreeSet<String>,
    /// The paths that are read from the keys and nowhere else; `None`: documents are fetched.
    pub covered: Option<BTreeSet<String>>,
}

/// What is left to match.
#[derive(Debug, Clone)]
pub struct Settled(pub Option<Arc<Filter>>);

impl Covering {
    /// `sorted`: the keys come in the order that is asked for.
    pub fn of(request: &Request<'_>, bounds: &IndexBounds, sorted: bool) -> Covering {
        let filter = &request.query.filter;
        let conjuncts = filter.conjuncts();
        let mut is_left = vec![false; conjuncts.len()];
        let mut on_key = Vec::new();
        for (number, node) in conjuncts.iter().enumerate() {
            if bounds.exact || bounds.met.contains(&number) {
                continue;
            }
            let mut paths = BTreeSet::new();
            match node.dependencies(&mut paths) && bounds.covers(&paths) {
                true => on_key.push((number, paths)),
                false => is_left[number] = true,
            }
        }
        if is_left.contains(&true) {
            // An expression may fail: not for a document that another condition leaves out.
            on_key.retain(|(number, _)| {
                is_left[*number] = conjuncts[*number].computes();
                !is_left[*number]
            });
        }
        let mut is_on_key = vec![false; conjuncts.len()];
        let mut filtered = BTreeSet::new();
        for (number, paths) in on_key {
            is_on_key[number] = true;
            filtered.extend(paths);
        }
        let part = |wanted: &[bool]| filter.part(|number, _| wanted[number]).map(Arc::new);
        let residual = part(&is_left);
        let covered = match residual {
            Some(_) => None,
            None => needs(request, sorted)
                .filter(|paths| bounds.covers(paths))
                .filter(|paths| {
                    // As in MongoDB the order of the fields shows what was read.
                    let mut all = paths.iter().chain(&filtered);
                    request.query.projection.is_none() || all.all(|path| bounds.has_field(path))
                }),
        };
        let asked = bounds.asked_shape.as_ref();
        let asked = asked.filter(|asked| is_left.get(asked.conjunct) == Some(&true));
        let settled = asked.map(|asked| {
            is_left[asked.conjunct] = false;
            Settled(part(&is_left))
        });
        Covering {
            settled,
            key_filter: part(&is_on_key),
            residual,
            filtered,
            covered,
        }
    }
}

/// The paths that are looked at once the filter has matched; `None`: the whole document.
fn needs(request: &Request<'_>, sorted: bool) -> Option<BTreeSet<String>> {
    let mut paths = BTreeSet::new();
    if let Some(filter) = &request.shard_filter {
        filter.dependencies(&mut paths);
    }
    if request.goal == Goal::Count {
        return Some(paths);
    }
    match (&request.query.projection, &request.reads) {
        _ if request.return_key => {}
        _ if !request.query.metadata.is_empty() => return None,
        (Some(projection), _) if projection.dependencies(&mut paths) => {}
        (None, Some(reads)) => paths.extend(reads.iter().cloned()),
        _ => return None,
    }
    let order = request.query.order.pattern().filter(|_| !sorted);
    if let Some(sort) = order.or(request.merge_order.as_ref()) {
        paths.extend(sort.fields().iter().map(|(path, _)| path.to_string()));
    }
    Some(paths)
}
