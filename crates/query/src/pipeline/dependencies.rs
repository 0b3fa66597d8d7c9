//! Which fields of its input a pipeline reads, so that the rest need not be carried along.

use std::collections::BTreeSet;

use super::stage::Stage;

/// The fields of the input that matter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Dependencies {
    Whole,
    /// Dotted paths; everything below and above them may be looked at.
    Paths(BTreeSet<String>),
}

/// How a stage changes what is known about the fields needed.
pub(super) enum Effect {
    /// It reads these and passes all fields on.
    Passes,
    /// Its results are made of what it reads and nothing else.
    Closes,
    /// It may look at anything.
    Unknown,
}

impl Dependencies {
    pub(super) fn of(stages: &[Stage]) -> Dependencies {
        let mut paths = BTreeSet::new();
        for stage in stages {
            match stage.dependencies(&mut paths) {
                Effect::Passes => {}
                Effect::Closes => return Dependencies::Paths(paths),
                Effect::Unknown => return Dependencies::Whole,
            }
        }
        Dependencies::Whole
    }

    /// Whether the top-level field `name` matters.
    pub fn needs(&self, name: &str) -> bool {
        match self {
            Dependencies::Whole => true,
            Dependencies::Paths(paths) => paths
                .iter()
                .any(|path| path.split('.').next() == Some(name)),
        }
    }
}

impl Stage {
    fn dependencies(&self, paths: &mut BTreeSet<String>) -> Effect {
        let bounded = |known: bool, effect| if known { effect } else { Effect::Unknown };
        match self {
            Stage::Group(group) => bounded(group.dependencies(paths), Effect::Closes),
            Stage::Project(projector) if projector.is_inclusion() => {
                bounded(projector.dependencies(paths), Effect::Closes)
            }
            Stage::AddFields(projector) => bounded(projector.dependencies(paths), Effect::Passes),
            Stage::ReplaceRoot(replace) => {
                bounded(replace.expression().dependencies(paths), Effect::Closes)
            }
            Stage::Unwind(unwind) => {
                paths.insert(unwind.path.to_string());
                Effect::Passes
            }
            Stage::Sort(sort) => {
                sort.dependencies(paths);
                Effect::Passes
            }
            Stage::Match(stage) => {
                bounded(match_dependencies(&stage.source, paths), Effect::Passes)
            }
            Stage::Limit(_) | Stage::Skip(_) | Stage::Sample(_) => Effect::Passes,
            _ => Effect::Unknown,
        }
    }
}

/// The paths that a plain filter names; false where an operator looks at more.
fn match_dependencies(filter: &bson::RawDocument, paths: &mut BTreeSet<String>) -> bool {
    for (name, value) in filter.iter().map_while(Result::ok) {
        match (name.as_str(), value) {
            ("$and" | "$or" | "$nor", bson::RawBsonRef::Array(array)) => {
                for item in crate::expression::value::items(array) {
                    let bson::RawBsonRef::Document(inner) = item else {
                        return false;
                    };
                    if !match_dependencies(inner, paths) {
                        return false;
                    }
                }
            }
            ("$comment", _) => {}
            (operator, _) if operator.starts_with('$') => return false,
            (path, _) => {
                paths.insert(path.into());
            }
        }
    }
    true
}
