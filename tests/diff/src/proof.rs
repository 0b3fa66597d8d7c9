//! Proves that a request has two faults, of which each server names another one first.
//!
//! One edit, somewhere, leaves the first fault alone: both servers name it. Another edit, elsewhere,
//! leaves the second alone. Both edits leave neither. So the faults are in different places, and about
//! each of them the servers agree.

use std::collections::VecDeque;

use bson::{Bson, Document, doc};

use crate::case::{COLLECTION, Case};
use crate::compare::Fault;
use crate::story;

/// Requests that are looked at before there is no proof.
const ATTEMPTS: usize = 1500;

/// The same of a story, which is told anew for each.
const STORIES: usize = 400;

/// Edits that are made at once.
const EDITS: usize = 3;

/// What both servers say to a case: the reference, then Banyan. `None` is no fault.
pub type Faults = (Option<Fault>, Option<Fault>);

/// Whether `case` has two faults, of which the reference has named the first and Banyan the second, and
/// each alone is answered alike. The case itself is not asked again: the reference goes over some things
/// in an order that is another one each time.
///
/// `answers` asks both servers; it has none where a case cannot be put to them.
pub fn each_alone(
    case: &Case,
    (first, second): (Fault, Fault),
    answers: impl FnMut(&Case) -> Option<Faults>,
) -> bool {
    if first == second {
        return false;
    }
    let search = Search {
        answers,
        tree: tree(case),
        is_story: case.before.is_some(),
        first,
        second,
        first_alone: Vec::new(),
        second_alone: Vec::new(),
        left: match case.before {
            Some(_) => STORIES,
            None => ATTEMPTS,
        },
        nearer: VecDeque::new(),
        other: VecDeque::new(),
    };
    search.run()
}

/// Something else at one place of a case.
#[derive(Clone, Debug, PartialEq)]
struct Edit {
    /// The way from the root, by position.
    place: Vec<usize>,
    change: Change,
}

#[derive(Clone, Debug, PartialEq)]
enum Change {
    Remove,
    Put(Bson),
}

impl Edit {
    /// Whether one of the places is within the other one, or the same.
    fn meets(&self, other: &Edit) -> bool {
        self.place.starts_with(&other.place) || other.place.starts_with(&self.place)
    }
}

struct Search<A> {
    answers: A,
    tree: Bson,
    is_story: bool,
    /// What the reference names, and what Banyan does.
    first: Fault,
    second: Fault,
    /// Edits that leave one of the faults alone.
    first_alone: Vec<Vec<Edit>>,
    second_alone: Vec<Vec<Edit>>,
    left: usize,
    /// Edits to which others are still to be added: those that made a server change its mind.
    nearer: VecDeque<Vec<Edit>>,
    /// Those with which the servers answer as before.
    other: VecDeque<Vec<Edit>>,
}

impl<A: FnMut(&Case) -> Option<Faults>> Search<A> {
    fn run(mut self) -> bool {
        let single = edits(&self.tree, self.is_story);
        let mut from = Some(Vec::new());
        while let Some(made) = from {
            for edit in &single {
                if made.iter().any(|other: &Edit| other.meets(edit)) {
                    continue;
                }
                let mut edits = made.clone();
                edits.push(edit.clone());
                if self.left == 0 {
                    return false;
                }
                let Some(faults) = self.ask(&edits) else {
                    continue;
                };
                if self.is_proof(edits, faults) {
                    return true;
                }
            }
            from = self.nearer.pop_front().or_else(|| self.other.pop_front());
        }
        false
    }

    fn ask(&mut self, edits: &[Edit]) -> Option<Faults> {
        self.left = self.left.saturating_sub(1);
        let case = of_tree(&edited(&self.tree, edits, &mut Vec::new())?, self.is_story)?;
        (self.answers)(&case)
    }

    /// Remembers what these edits lead to, and says whether that was what was missing.
    fn is_proof(&mut self, edits: Vec<Edit>, faults: Faults) -> bool {
        let (Some(expected), Some(found)) = faults else {
            return false;
        };
        let has_first = expected == self.first;
        let has_second = found == self.second;
        if has_first && found == self.first {
            let others = self.second_alone.clone();
            self.first_alone.push(edits.clone());
            return others.iter().any(|other| self.leave_neither(&edits, other));
        }
        if has_second && expected == self.second {
            let others = self.first_alone.clone();
            self.second_alone.push(edits.clone());
            return others.iter().any(|other| self.leave_neither(other, &edits));
        }
        if edits.len() < EDITS {
            if has_first && has_second {
                self.other.push_back(edits);
            } else if has_first || has_second {
                self.nearer.push_back(edits);
            }
        }
        false
    }

    /// Whether what left each fault alone was in different places, and both together end both. Where
    /// something was only taken away, that may be a fault as well, and have one of the codes.
    fn leave_neither(&mut self, one: &[Edit], other: &[Edit]) -> bool {
        let mut both = one.to_vec();
        for edit in other {
            if both.contains(edit) {
                continue;
            }
            if both.iter().any(|made| made.meets(edit)) {
                return false;
            }
            both.push(edit.clone());
        }
        let faults = [self.first, self.second];
        let only_less = both.iter().all(|edit| edit.change == Change::Remove);
        self.ask(&both).is_some_and(|(expected, found)| {
            if only_less && expected == found {
                return true;
            }
            let left = [expected, found].into_iter().flatten();
            !left.into_iter().any(|fault| faults.contains(&fault))
        })
    }
}

/// The case with null where `$push` and `$addToSet` have a missing value.
pub fn with_values_present(case: &Case) -> Case {
    fn changed(value: &Bson) -> Bson {
        match value {
            Bson::Document(document) => {
                let fields = document.iter().map(|(name, value)| {
                    let value = match name.as_str() {
                        "$push" | "$addToSet" => {
                            Bson::Document(doc! { "$ifNull": [value.clone(), Bson::Null] })
                        }
                        _ => changed(value),
                    };
                    (name.clone(), value)
                });
                Bson::Document(fields.collect())
            }
            Bson::Array(items) => Bson::Array(items.iter().map(changed).collect()),
            value => value.clone(),
        }
    }
    let fields = case.command.iter();
    Case {
        command: fields
            .map(|(name, value)| (name.clone(), changed(value)))
            .collect(),
        ..case.clone()
    }
}

/// Pipelines in which a condition, an order or a projection also stands further ahead that are looked at.
const AHEAD: usize = 120;

/// The case in every way in which a `$match`, or one of its conditions, a `$sort` or a `$project` of
/// one of its pipelines is there a second time, further ahead; a `find` as a pipeline that projects
/// before it sorts.
pub fn with_a_stage_ahead(case: &Case) -> Vec<Case> {
    let command = Bson::Document(case.command.clone());
    let mut all: Vec<Case> = projected_first(case).into_iter().collect();
    ahead_in(&command, &mut |value| {
        if let Bson::Document(command) = value {
            let case = case.clone();
            all.push(Case { command, ..case });
        }
    });
    all.truncate(AHEAD);
    all
}

fn projected_first(case: &Case) -> Option<Case> {
    let find = &case.command;
    let stage = |name: &str, option: &str| Some(doc! { name: find.get(option)?.clone() });
    let (project, sort) = (stage("$project", "projection")?, stage("$sort", "sort")?);
    let stages = [
        stage("$match", "filter"),
        Some(project),
        Some(sort),
        stage("$skip", "skip"),
        stage("$limit", "limit"),
    ];
    let stages: Vec<Document> = stages.into_iter().flatten().collect();
    let mut cursor = Document::new();
    if let Some(size) = find.get("batchSize") {
        cursor.insert("batchSize", size.clone());
    }
    let collection = find.get("find")?.clone();
    let mut command = doc! { "aggregate": collection, "pipeline": stages, "cursor": cursor };
    for option in ["collation", "let", "hint"] {
        if let Some(value) = find.get(option) {
            command.insert(option, value.clone());
        }
    }
    let case = case.clone();
    Some(Case { command, ..case })
}

/// Hands on the value with each of its inner pipelines changed so.
fn ahead_in(value: &Bson, made: &mut dyn FnMut(Bson)) {
    match value {
        Bson::Document(document) => {
            for (name, inner) in document {
                ahead_in(inner, &mut |inner| {
                    let mut changed = document.clone();
                    changed.insert(name.clone(), inner);
                    made(Bson::Document(changed));
                });
            }
        }
        Bson::Array(items) => {
            for (at, item) in items.iter().enumerate() {
                for stage in item.as_document().into_iter().flat_map(stages_of) {
                    for place in 0..at {
                        let mut changed = items.clone();
                        changed.insert(place, Bson::Document(stage.clone()));
                        made(Bson::Array(changed));
                    }
                }
                ahead_in(item, &mut |inner| {
                    let mut changed = items.clone();
                    changed[at] = inner;
                    made(Bson::Array(changed));
                });
            }
        }
        _ => {}
    }
}

/// What of a stage may stand further ahead as well.
fn stages_of(stage: &Document) -> Vec<Document> {
    match stage.iter().next() {
        Some((name, _)) if name == "$sort" || name == "$project" => vec![stage.clone()],
        Some((name, Bson::Document(conditions))) if name == "$match" => {
            let mut stages = vec![stage.clone()];
            if conditions.len() > 1 {
                let one = |(name, value): (&String, &Bson)| {
                    doc! { "$match": { name.clone(): value.clone() } }
                };
                stages.extend(conditions.iter().map(one));
            }
            stages
        }
        _ => Vec::new(),
    }
}

/// The case as one value: its documents, what came before, the command.
fn tree(case: &Case) -> Bson {
    let list = |documents: &[Document]| {
        let documents = documents.iter().cloned().map(Bson::Document);
        Bson::Array(documents.collect())
    };
    Bson::Array(vec![
        list(&case.documents),
        list(case.before.as_deref().unwrap_or_default()),
        Bson::Document(case.command.clone()),
    ])
}

fn of_tree(tree: &Bson, is_story: bool) -> Option<Case> {
    let [documents, before, command] = tree.as_array()?.as_slice() else {
        return None;
    };
    let list = |value: &Bson| -> Option<Vec<Document>> {
        let items = value.as_array()?.iter();
        items.map(|item| item.as_document().cloned()).collect()
    };
    Some(Case {
        documents: list(documents)?,
        indexes: Vec::new(),
        before: match is_story {
            true => Some(list(before)?),
            false => None,
        },
        command: command.as_document()?.clone(),
    })
}

/// The value after the edits; `None` if nothing is left of it.
fn edited(value: &Bson, edits: &[Edit], place: &mut Vec<usize>) -> Option<Bson> {
    match edits.iter().find(|edit| edit.place == *place) {
        Some(edit) => match &edit.change {
            Change::Remove => None,
            Change::Put(other) => Some(other.clone()),
        },
        None if !edits.iter().any(|edit| edit.place.starts_with(place)) => Some(value.clone()),
        None => {
            let mut inner = |at: usize, value: &Bson| {
                place.push(at);
                let inner = edited(value, edits, place);
                place.pop();
                inner
            };
            Some(match value {
                Bson::Document(document) => {
                    let fields = document.iter().enumerate();
                    let fields = fields
                        .filter_map(|(at, (name, value))| Some((name.clone(), inner(at, value)?)));
                    Bson::Document(fields.collect())
                }
                Bson::Array(items) => {
                    let items = items.iter().enumerate();
                    Bson::Array(items.filter_map(|(at, item)| inner(at, item)).collect())
                }
                other => other.clone(),
            })
        }
    }
}

/// Every single edit that may mend something.
fn edits(tree: &Bson, is_story: bool) -> Vec<Edit> {
    let mut places = Vec::new();
    visit(tree, &mut Vec::new(), &mut places);
    let mut all = Vec::new();
    for (place, _) in &places {
        if is_name(tree, place) {
            let names = match is_story {
                true => &[story::COLLECTION, story::OTHER][..],
                // The others are read by many cases, and stay as they are.
                false => &[COLLECTION],
            };
            let put = |name: &&str| (place.clone(), Change::Put((*name).into()));
            all.extend(names.iter().map(put));
        } else {
            all.push((place.clone(), Change::Remove));
        }
    }
    for change in harmless() {
        for (place, value) in &places {
            if **value != change && !is_name(tree, place) {
                all.push((place.clone(), Change::Put(change.clone())));
            }
        }
    }
    let edit = |(place, change)| Edit { place, change };
    all.into_iter().map(edit).collect()
}

/// Whether the place is the first field of a command: it names the command and the collection.
fn is_name(tree: &Bson, place: &[usize]) -> bool {
    let command = match place {
        [1, at, ..] => &[1, *at][..],
        [2, ..] => &[2][..],
        _ => return false,
    };
    let mut value = tree;
    let mut rest = place;
    for &at in command {
        let Some(inner) = value.as_array().and_then(|items| items.get(at)) else {
            return false;
        };
        (value, rest) = (inner, &rest[1..]);
    }
    // Of a command that is explained the name is one further down.
    while let Some((0, further)) = rest.split_first() {
        let first = value
            .as_document()
            .and_then(|document| document.iter().next());
        match first {
            Some((name, inner)) if name == "explain" && inner.as_document().is_some() => {
                if further.is_empty() {
                    return false;
                }
                (value, rest) = (inner, further);
            }
            _ => return further.is_empty(),
        }
    }
    false
}

/// Every place below the parts of the case, with its value.
fn visit<'a>(value: &'a Bson, place: &mut Vec<usize>, all: &mut Vec<(Vec<usize>, &'a Bson)>) {
    // The lists of documents and of commands, the command, and the one that it explains stay.
    let stays = match place.as_slice() {
        [] | [_] => true,
        [2, 0] | [1, _, 0] => value.as_document().is_some(),
        _ => false,
    };
    if !stays {
        all.push((place.clone(), value));
    }
    let mut inner = |at: usize, value: &'a Bson| {
        place.push(at);
        visit(value, place, all);
        place.pop();
    };
    match value {
        Bson::Document(document) => {
            let fields = document.iter().enumerate();
            fields.for_each(|(at, (_, value))| inner(at, value));
        }
        Bson::Array(items) => {
            let items = items.iter().enumerate();
            items.for_each(|(at, item)| inner(at, item));
        }
        _ => {}
    }
}

/// What is right in most places in which something is wrong.
fn harmless() -> Vec<Bson> {
    vec![
        Bson::Null,
        Bson::Int32(1),
        Bson::String("a".to_owned()),
        Bson::String("$missing".to_owned()),
        Bson::Document(doc! { "a": 1 }),
        Bson::Document(doc! {}),
        Bson::Array(vec![Bson::Document(doc! {})]),
        Bson::Array(Vec::new()),
        Bson::Boolean(true),
        Bson::DateTime(bson::DateTime::from_millis(0)),
        Bson::String("day".to_owned()),
        Bson::Int32(2000),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::notation::{self, parse_document, split};

    fn case(command: &str) -> Case {
        Case {
            documents: split("[{_id: 1}]").unwrap(),
            indexes: Vec::new(),
            before: None,
            command: parse_document(command).unwrap(),
        }
    }

    /// With what the servers say of the case itself.
    fn proven(case: &Case, answers: impl Fn(&Case) -> Option<Faults>) -> bool {
        match answers(case) {
            Some((Some(first), Some(second))) => each_alone(case, (first, second), answers),
            _ => false,
        }
    }

    fn fault(code: i64) -> Option<Fault> {
        Some(Fault::Command(Some(code)))
    }

    /// Names the faults of a command in an order: what a part says, and the code for that.
    fn names(case: &Case, order: &[(&str, i64)]) -> Option<Fault> {
        let text = notation::print_document(&case.command);
        let fault = order.iter().find(|(part, _)| text.contains(part))?;
        self::fault(fault.1)
    }

    #[test]
    fn conditions_that_stand_ahead_as_well() {
        let pipeline = "[{$project: {a: 1}}, {$match: {a: 1, b: 2}}]";
        let case = case(&format!("{{aggregate: \"c\", pipeline: {pipeline}}}"));
        let made: Vec<String> = with_a_stage_ahead(&case)
            .iter()
            .map(|case| notation::print_document(&case.command))
            .collect();
        let ahead = |condition: &str| {
            format!(
                "{{aggregate: \"c\", pipeline: [{{$match: {condition}}}, {}}}",
                &pipeline[1..]
            )
        };
        let expected = [ahead("{a: 1, b: 2}"), ahead("{a: 1}"), ahead("{b: 2}")];
        assert_eq!(made, expected);
    }

    #[test]
    fn a_find_that_projects_first() {
        let case =
            case("{find: \"c\", filter: {a: 1}, sort: {b: 1}, projection: {b: 1}, limit: 2}");
        let made = with_a_stage_ahead(&case);
        let [made] = made.as_slice() else {
            panic!("{} of one find", made.len());
        };
        assert_eq!(
            notation::print_document(&made.command),
            "{aggregate: \"c\", pipeline: [{$match: {a: 1}}, {$project: {b: 1}}, {$sort: {b: 1}}, \
             {$limit: 2}], cursor: {}}"
        );
    }

    #[test]
    fn values_that_are_never_missing() {
        let pipeline = "[{$setWindowFields: {output: {x: {$push: \"$a\", window: {}}}}}]";
        let case = case(&format!("{{aggregate: \"c\", pipeline: {pipeline}}}"));
        let made = notation::print_document(&with_values_present(&case).command);
        assert!(
            made.contains("{$push: {$ifNull: [\"$a\", null]}, window: {}}"),
            "{made}"
        );
    }

    #[test]
    fn two_faults_that_are_named_in_another_order() {
        let two = case("{find: \"c\", filter: {a: {$foo: 1}}, sort: {b: \"x\"}}");
        let answers = |case: &Case| {
            let expected = names(case, &[("$foo", 2), ("\"x\"", 15974)]);
            let found = names(case, &[("\"x\"", 15974), ("$foo", 2)]);
            Some((expected, found))
        };
        assert!(proven(&two, answers));
    }

    #[test]
    fn the_same_of_three() {
        let three = case("{find: \"c\", filter: {a: {$foo: 1}, c: -5}, sort: {b: \"x\"}}");
        let answers = |case: &Case| {
            let expected = names(case, &[("$foo", 2), ("-5", 9), ("\"x\"", 15974)]);
            let found = names(case, &[("\"x\"", 15974), ("-5", 9), ("$foo", 2)]);
            Some((expected, found))
        };
        assert!(proven(&three, answers));
    }

    #[test]
    fn one_fault_with_two_codes_is_none() {
        let one = case("{find: \"c\", filter: {a: {$foo: 1}}, sort: {b: 1}}");
        let answers =
            |case: &Case| Some((names(case, &[("$foo", 2)]), names(case, &[("$foo", 9)])));
        assert!(!proven(&one, answers));
    }

    #[test]
    fn one_fault_that_other_values_would_have_alike_is_none() {
        // Values there are refused with either code, but in one place only one can be.
        let one = case("{find: \"c\", limit: -5}");
        let answers = |case: &Case| match case.command.get("limit") {
            Some(Bson::Int32(-5)) => Some((fault(2), fault(9))),
            Some(Bson::Int32(2000)) => Some((fault(2), fault(2))),
            Some(Bson::String(_)) => Some((fault(9), fault(9))),
            _ => Some((None, None)),
        };
        assert!(!proven(&one, answers));
    }

    #[test]
    fn a_second_fault_that_only_one_server_finds_is_none() {
        let case = case("{find: \"c\", filter: {a: {$foo: 1}}, sort: {b: \"x\"}}");
        // Banyan refuses the sort, which the reference lets through.
        let answers = |case: &Case| {
            let found = names(case, &[("\"x\"", 15974), ("$foo", 2)]);
            Some((names(case, &[("$foo", 2)]), found))
        };
        assert!(!proven(&case, answers));
    }

    #[test]
    fn an_error_beside_an_answer_is_none() {
        let case = case("{find: \"c\", filter: {a: {$foo: 1}}, sort: {b: \"x\"}}");
        let answers = |case: &Case| Some((names(case, &[("$foo", 2)]), None));
        assert!(!proven(&case, answers));
    }

    #[test]
    fn so_may_what_an_explained_command_is_for() {
        let case = case("{explain: {find: \"a$b\", filter: {a: {$foo: 1}}}}");
        let answers = |case: &Case| {
            let expected = names(case, &[("$foo", 2), ("a$b", 73)]);
            Some((expected, names(case, &[("a$b", 73), ("$foo", 2)])))
        };
        assert!(proven(&case, answers));
    }

    #[test]
    fn edits_leave_the_rest_where_it_is() {
        let case = case("{find: \"c\", filter: {a: 1, b: [5, 6, 7]}}");
        let edit = |place: &[usize], change| Edit {
            place: place.to_vec(),
            change,
        };
        let edits = [
            edit(&[2, 1, 1, 0], Change::Remove),
            edit(&[2, 1, 1, 2], Change::Put(Bson::Null)),
            edit(&[2, 1, 0], Change::Remove),
            edit(&[0, 0], Change::Remove),
        ];
        let tree = edited(&tree(&case), &edits, &mut Vec::new()).unwrap();
        let case = of_tree(&tree, false).unwrap();
        assert!(case.documents.is_empty());
        let command = notation::print_document(&case.command);
        assert_eq!(command, "{find: \"c\", filter: {b: [6, null]}}");
    }

    #[test]
    fn the_name_of_the_collection_may_be_a_fault() {
        let case = case("{find: \"a$b\", filter: {a: {$foo: 1}}}");
        let answers = |case: &Case| {
            let expected = names(case, &[("$foo", 2), ("a$b", 73)]);
            Some((expected, names(case, &[("a$b", 73), ("$foo", 2)])))
        };
        assert!(proven(&case, answers));
    }
}
