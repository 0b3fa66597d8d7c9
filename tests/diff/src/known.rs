//! The known differences, all in `known.txt`: stanzas that each say which differences they take in
//! and why that is so. Everything in a stanza must hold for a difference to be taken in; in a list
//! (`|`) one of the patterns; `*` stands for anything. An entry may ask for a proof besides: then the
//! case itself has to show that the reason holds.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, bail};
use bson::Document;

use crate::case::{self, Case};
use crate::compare::Difference;
use crate::notation;
use crate::proof::{self, Faults};

#[derive(Debug, Default)]
pub struct Known {
    entries: Vec<Entry>,
}

#[derive(Debug, Default)]
struct Entry {
    name: String,
    reason: String,
    /// Against [`Difference::class`].
    class: Vec<String>,
    /// Operators, options or stages: the command has one of them as a field's name.
    mentions: Vec<Vec<String>>,
    /// The command's name.
    command: Vec<String>,
    /// Against the values that differ.
    expected: Vec<String>,
    found: Vec<String>,
    /// Against the path of what differs.
    path: Vec<String>,
    /// Against the text of the command.
    text: Vec<String>,
    /// Against the text of one of the commands of a story that came before, or of one of the
    /// documents: one of the patterns of each list.
    before: Vec<Vec<String>>,
    proof: Option<Proof>,
    absorbed: AtomicUsize,
    /// What was taken in by a proof, by its class.
    proven: Mutex<BTreeMap<String, usize>>,
}

/// What has to be shown of a case before an entry takes it in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Proof {
    /// See [`crate::proof::each_alone`].
    EachAlone,
    /// The reference finds as many documents as Banyan has counted.
    FoundDocuments,
    /// Played again and again, the case is answered alike once.
    Chance,
    /// One answers as the other does once a condition, an order or a projection stands further ahead.
    Ahead,
    /// Both answer alike once no value that is put into an array is missing.
    Present,
}

/// How often a case is played again to show that its answer is one of chance.
const TRIES: usize = 40;

/// Who asks the servers more, for a proof.
pub trait Witness {
    /// What both find fault with in a case; `None` where it cannot be put to them.
    fn faults(&mut self, case: &Case) -> Option<Faults>;

    /// Whether the reference finds as many documents as Banyan counts.
    fn finds_what_is_counted(&mut self, case: &Case) -> bool;

    /// Whether both answer alike this time.
    fn agrees(&mut self, case: &Case) -> bool;

    /// Whether one answers this case as the other one answers that case.
    fn agrees_across(&mut self, this: &Case, that: &Case) -> bool;
}

impl Known {
    pub fn read(path: &Path) -> Result<Known> {
        let text = fs::read_to_string(path).with_context(|| format!("{}", path.display()))?;
        Known::parse(&text).with_context(|| format!("{}", path.display()))
    }

    pub fn parse(text: &str) -> Result<Known> {
        let mut entries: Vec<Entry> = Vec::new();
        for (at, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            if let Some(name) = line
                .strip_prefix('[')
                .and_then(|line| line.strip_suffix(']'))
            {
                entries.push(Entry {
                    name: name.to_owned(),
                    ..Entry::default()
                });
                continue;
            }
            let (Some((field, value)), Some(entry)) = (line.split_once(':'), entries.last_mut())
            else {
                bail!("line {}: neither [name] nor field: value", at + 1);
            };
            entry
                .set(field, value.trim())
                .with_context(|| format!("line {}", at + 1))?;
        }
        for entry in &entries {
            let complete = !entry.reason.is_empty() && !entry.class.is_empty();
            anyhow::ensure!(complete, "[{}] needs a reason and a class", entry.name);
        }
        Ok(Known { entries })
    }

    /// The name of the first entry that takes this difference in, which counts it. Those that ask
    /// for a proof do not.
    pub fn absorb(&self, case: &Case, difference: &Difference) -> Option<&str> {
        self.take(case, difference, |entry| entry.proof.is_none())
    }

    /// The same with the entries that ask for a proof.
    pub fn absorb_proven(
        &self,
        case: &Case,
        difference: &Difference,
        witness: &mut impl Witness,
    ) -> Option<&str> {
        // Several may ask for the same proof, which is looked for once.
        let mut each_alone: Option<bool> = None;
        self.take(case, difference, |entry| match entry.proof {
            None => false,
            Some(Proof::EachAlone) => *each_alone.get_or_insert_with(|| {
                let answers = |case: &Case| witness.faults(case);
                let faults = difference.faults();
                faults.is_some_and(|faults| proof::each_alone(case, faults, answers))
            }),
            Some(Proof::FoundDocuments) => witness.finds_what_is_counted(case),
            Some(Proof::Chance) => (0..TRIES).any(|_| witness.agrees(case)),
            Some(Proof::Present) => {
                let changed = proof::with_values_present(case);
                changed != *case && witness.agrees(&changed)
            }
            Some(Proof::Ahead) => {
                let changed = proof::with_a_stage_ahead(case);
                changed
                    .iter()
                    .any(|changed| witness.agrees_across(case, changed))
            }
        })
    }

    fn take(
        &self,
        case: &Case,
        difference: &Difference,
        mut also: impl FnMut(&Entry) -> bool,
    ) -> Option<&str> {
        let text = notation::print_document(&case.command);
        let before = case.before.iter().flatten().chain(&case.documents);
        let before = before.map(notation::print_document);
        let before: Vec<String> = before.collect();
        let entry = self.entries.iter().find(|entry| {
            entry.takes(&case.command, &text, difference) && entry.follows(&before) && also(entry)
        })?;
        entry.absorbed.fetch_add(1, Ordering::Relaxed);
        if entry.proof.is_some() {
            let mut proven = entry.proven.lock().expect("nobody panics with it");
            *proven.entry(difference.class.clone()).or_default() += 1;
        }
        Some(&entry.name)
    }

    /// How many of which class a proof has taken in, the most frequent first.
    pub fn proven(&self) -> Vec<(String, usize)> {
        let mut all = Vec::new();
        for entry in &self.entries {
            all.extend(entry.proven.lock().expect("nobody panics with it").clone());
        }
        all.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        all
    }

    /// How many each has taken in, in the order of the file.
    pub fn counts(&self) -> impl Iterator<Item = (&str, usize)> {
        let count = |entry: &Entry| entry.absorbed.load(Ordering::Relaxed);
        self.entries
            .iter()
            .map(move |entry| (entry.name.as_str(), count(entry)))
    }
}

impl Entry {
    fn set(&mut self, field: &str, value: &str) -> Result<()> {
        let list = || {
            value
                .split('|')
                .map(|part| part.trim().to_owned())
                .collect()
        };
        match field {
            "reason" => self.reason = value.to_owned(),
            "class" => self.class = list(),
            "mentions" => self.mentions.push(list()),
            "command" => self.command = list(),
            "expected" => self.expected = list(),
            "found" => self.found = list(),
            "path" => self.path = list(),
            "text" => self.text = list(),
            "before" => self.before.push(list()),
            "proof" => {
                self.proof = Some(match value {
                    "each alone" => Proof::EachAlone,
                    "found documents" => Proof::FoundDocuments,
                    "chance" => Proof::Chance,
                    "ahead" => Proof::Ahead,
                    "present" => Proof::Present,
                    _ => bail!("{value} is no proof"),
                });
            }
            _ => bail!("{field} is no field of an entry"),
        }
        Ok(())
    }

    fn follows(&self, before: &[String]) -> bool {
        let came = |pattern: &String| before.iter().any(|text| matches(pattern, text));
        self.before.iter().all(|patterns| patterns.iter().any(came))
    }

    fn takes(&self, command: &Document, text: &str, difference: &Difference) -> bool {
        let one_of = |patterns: &[String], value: &str| {
            patterns.is_empty() || patterns.iter().any(|pattern| matches(pattern, value))
        };
        let mentioned = |names: &Vec<String>| names.iter().any(|name| mentions(text, name));
        let name = case::name(command);
        one_of(&self.class, &difference.class)
            && one_of(&self.command, name)
            && one_of(&self.path, &difference.path)
            && one_of(&self.expected, &difference.expected)
            && one_of(&self.found, &difference.found)
            && self.mentions.iter().all(mentioned)
            && one_of(&self.text, text)
    }
}

/// Whether a field of that name is somewhere in the text of a command.
fn mentions(text: &str, name: &str) -> bool {
    let with_colon = format!("{name}: ");
    let mut found = text.match_indices(&with_colon);
    found.any(|(at, _)| text[..at].ends_with(['{', ' ']))
}

/// Whether the pattern, in which `*` stands for anything, is the whole value.
fn matches(pattern: &str, value: &str) -> bool {
    let Some((head, tail)) = pattern.split_once('*') else {
        return pattern == value;
    };
    let Some(rest) = value.strip_prefix(head) else {
        return false;
    };
    let mut ends = rest.char_indices().map(|(at, _)| at).chain([rest.len()]);
    ends.any(|at| matches(tail, &rest[at..]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::Fault;

    /// One that says the same of everything.
    struct Says<F> {
        faults: F,
        finds: bool,
        /// The try at which both answer alike.
        agrees_at: usize,
        tries: usize,
    }

    impl<F: FnMut(&Case) -> Option<Faults>> Witness for Says<F> {
        fn faults(&mut self, case: &Case) -> Option<Faults> {
            (self.faults)(case)
        }

        fn finds_what_is_counted(&mut self, _: &Case) -> bool {
            self.finds
        }

        fn agrees(&mut self, _: &Case) -> bool {
            self.tries += 1;
            self.tries == self.agrees_at
        }

        fn agrees_across(&mut self, _: &Case, _: &Case) -> bool {
            false
        }
    }

    fn says<F: FnMut(&Case) -> Option<Faults>>(faults: F) -> Says<F> {
        Says {
            faults,
            finds: false,
            agrees_at: 0,
            tries: 0,
        }
    }

    fn difference(class: &str) -> Difference {
        Difference {
            class: class.to_owned(),
            path: "results.a".to_owned(),
            expected: "1".to_owned(),
            found: "2".to_owned(),
        }
    }

    fn case(command: &str, before: Option<&str>) -> Case {
        Case {
            documents: Vec::new(),
            indexes: Vec::new(),
            before: before.map(|text| vec![notation::parse_document(text).unwrap()]),
            command: notation::parse_document(command).unwrap(),
        }
    }

    #[test]
    fn an_entry_may_ask_for_what_came_before() {
        let known = Known::parse("[a]\nreason: x\nclass: y\nbefore: *timeseries: *").unwrap();
        let insert = "{insert: \"s\"}";
        let series = "{create: \"s\", timeseries: {timeField: \"d\"}}";
        let taken = |before| {
            known
                .absorb(&case(insert, before), &difference("y"))
                .is_some()
        };
        assert!(taken(Some(series)));
        assert!(!taken(Some("{create: \"s\"}")));
        assert!(!taken(None));
        let both = "[a]\nreason: x\nclass: y\nbefore: *timeseries: *\nbefore: *other*";
        let known = Known::parse(both).unwrap();
        let taken = known.absorb(&case(insert, Some(series)), &difference("y"));
        assert_eq!(taken, None);
    }

    #[test]
    fn stars_stand_for_anything() {
        assert!(matches("code * -> 238", "code 2 -> 238"));
        assert!(matches("*", ""));
        assert!(!matches("code * -> 2", "code 2 -> 238"));
        assert!(matches("a*b*c", "aXbbYc"));
    }

    #[test]
    fn an_entry_takes_in_what_it_says_and_counts_it() {
        let text = "[fill]\nreason: not there\nclass: ok -> 238 | code * -> 238\nmentions: $fill";
        let known = Known::parse(text).unwrap();
        let fill = case("{aggregate: \"c\", pipeline: [{$fill: {}}]}", None);
        let other = case("{aggregate: \"c\", pipeline: [{$a: \"$fill\"}]}", None);
        assert_eq!(
            known.absorb(&fill, &difference("code 9 -> 238")),
            Some("fill")
        );
        assert_eq!(known.absorb(&fill, &difference("code 9 -> 2")), None);
        assert_eq!(known.absorb(&other, &difference("code 9 -> 238")), None);
        assert_eq!(known.counts().collect::<Vec<_>>(), [("fill", 1)]);
    }

    #[test]
    fn an_entry_that_asks_for_a_proof_takes_in_what_is_proven() {
        let text = "[two]\nreason: x\nclass: code * -> *\nproof: each alone";
        let known = Known::parse(text).unwrap();
        let two = case("{find: \"c\", limit: -7, skip: -8}", None);
        let code = |code| Some(Fault::Command(Some(code)));
        let answers = |case: &Case| match (
            case.command.get_i32("limit").is_ok_and(|limit| limit < 0),
            case.command.get_i32("skip").is_ok_and(|skip| skip < 0),
        ) {
            (true, true) => Some((code(1), code(2))),
            (true, false) => Some((code(1), code(1))),
            (false, true) => Some((code(2), code(2))),
            (false, false) => Some((None, None)),
        };
        let difference = difference("code 1 -> 2");
        assert_eq!(known.absorb(&two, &difference), None);
        let proven = known.absorb_proven(&two, &difference, &mut says(answers));
        assert_eq!(proven, Some("two"));
        let never = |_: &Case| Some((code(1), code(2)));
        let proven = known.absorb_proven(&two, &difference, &mut says(never));
        assert_eq!(proven, None);
        assert_eq!(known.proven(), [("code 1 -> 2".to_owned(), 1)]);
    }

    #[test]
    fn counts_and_chance_are_shown_by_asking_more() {
        let text = "[count]\nreason: x\nclass: value int\npath: results.a\nproof: found documents\n\
                    [draw]\nreason: x\nclass: value string\nproof: chance";
        let known = Known::parse(text).unwrap();
        let count = case("{count: \"c\"}", None);
        let absorb = |class: &str, finds, agrees_at| {
            let mut witness = Says {
                finds,
                agrees_at,
                ..says(|_: &Case| None)
            };
            let taken = known.absorb_proven(&count, &difference(class), &mut witness);
            taken.map(ToOwned::to_owned)
        };
        assert_eq!(absorb("value int", true, 0).as_deref(), Some("count"));
        assert_eq!(absorb("value int", false, 1), None);
        assert_eq!(absorb("value string", false, 3).as_deref(), Some("draw"));
        assert_eq!(absorb("value string", true, 0), None);
    }

    #[test]
    fn an_entry_without_a_reason_is_refused() {
        assert!(Known::parse("[a]\nclass: x").is_err());
        assert!(Known::parse("reason: x").is_err());
        assert!(Known::parse("[a]\nreason: x\nclass: y\nnosuch: z").is_err());
        assert!(Known::parse("[a]\nreason: x\nclass: y\nproof: none").is_err());
    }
}
