//! What the router counts, for `serverStatus`.

use banyan_process::figures::{CommandCounts, Counter, Ending, OpCounters};
use banyan_wire::Request;
use bson::RawBsonRef;

use crate::fields;

/// One thread's counts.
pub struct Figures {
    pub operations: OpCounters,
    /// By the command's place in the table.
    pub commands: Box<[CommandCounts]>,
    pub unknown_commands: Counter,
    pub user_errors: Counter,
}

impl Figures {
    pub fn new(commands: usize) -> Figures {
        Figures {
            operations: OpCounters::default(),
            commands: (0..commands).map(|_| CommandCounts::default()).collect(),
            unknown_commands: Counter::default(),
            user_errors: Counter::default(),
        }
    }

    /// A command has ended.
    pub fn note(&self, place: usize, command: &str, request: &Request, ending: Ending) {
        if let Some(counts) = self.commands.get(place) {
            counts.note(ending);
        }
        self.user_errors.add(u64::from(ending != Ending::Well));
        let operations = &self.operations;
        match command {
            "find" => operations.query.add(1),
            "getMore" => operations.getmore.add(1),
            "insert" => operations.insert.add(statements(request, "documents")),
            "update" => operations.update.add(statements(request, "updates")),
            "delete" => operations.delete.add(statements(request, "deletes")),
            _ => operations.command.add(1),
        }
    }
}

/// How many statements a write has.
fn statements(request: &Request, name: &str) -> u64 {
    let sequence = request
        .sequences
        .iter()
        .find(|sequence| sequence.identifier == name);
    if let Some(sequence) = sequence {
        return sequence.len() as u64;
    }
    match fields::get(&request.body, name) {
        Some(RawBsonRef::Array(array)) => array.into_iter().count() as u64,
        _ => 0,
    }
}
