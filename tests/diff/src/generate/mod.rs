//! Cases out of a seed. Values come from small pools that overlap, so that filters match and
//! arguments have the right type more often than not, and the wrong one often enough.

mod collection;
mod command;
mod document;
mod expression;
mod filter;
pub mod geo;
mod index;
mod joins;
mod operators;
mod options;
mod ordered;
mod pipeline;
mod planned;
mod story;
pub mod text;
mod update;
mod windows;

use bson::Document;

use crate::case::Scene;
use crate::random::Random;
use ordered::Shapes;

/// Commands on one set of documents.
const COMMANDS_PER_SCENE: usize = 12;
const STORIES_PERCENT: usize = 20;
const ORDERED_PERCENT: usize = 20;

/// The scene of this number under this seed, always the same one.
pub fn scene(seed: u64, number: u64) -> Scene {
    let mut generator = Generator::new(Random::new(seed, number));
    if generator.random.percent(STORIES_PERCENT) {
        return Scene {
            documents: Vec::new(),
            commands: generator.story(),
            indexes: Vec::new(),
            is_story: true,
            is_ordered: false,
        };
    }
    let shapes = generator.shapes();
    let indexes = generator.scene_indexes(shapes);
    let is_ordered = generator.random.percent(ORDERED_PERCENT);
    let (documents, mut commands) = match is_ordered {
        true => generator.ordered(shapes),
        false => generator.various(),
    };
    // The documents need not be put back between those that only read.
    commands.sort_by_key(crate::case::writes);
    Scene {
        documents,
        commands,
        indexes,
        is_story: false,
        is_ordered,
    }
}

/// The source of everything random in a scene.
pub struct Generator {
    random: Random,
    /// Variables that expressions may name here.
    variables: Vec<&'static str>,
    /// Filters that an index of the scene asks for.
    asked: Vec<Document>,
}

impl Generator {
    pub fn new(random: Random) -> Self {
        Self {
            random,
            variables: Vec::new(),
            asked: Vec::new(),
        }
    }

    /// Documents of every shape, and commands of every kind.
    fn various(&mut self) -> (Vec<Document>, Vec<Document>) {
        let documents = self.documents();
        let command = |_| self.command(documents.len());
        let commands = (0..COMMANDS_PER_SCENE).map(command).collect();
        (documents, commands)
    }

    /// Documents with few values, and commands that want an order of them.
    fn ordered(&mut self, shapes: Shapes) -> (Vec<Document>, Vec<Document>) {
        let documents = self.ordered_documents(shapes);
        let command = |_| self.planned_command(shapes);
        let commands = (0..COMMANDS_PER_SCENE).map(command).collect();
        (documents, commands)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::notation::{parse_document, print_document};

    #[test]
    fn a_seed_makes_one_scene() {
        let (one, again) = (scene(7, 11), scene(7, 11));
        let text = |scene: &Scene| {
            let all = scene.documents.iter().chain(&scene.commands);
            all.map(print_document).collect::<Vec<_>>()
        };
        assert_eq!(text(&one), text(&again));
        assert_ne!(text(&one), text(&scene(7, 12)));
    }

    #[test]
    fn everything_generated_can_be_written_down() {
        for number in 0..300 {
            let scene = scene(1, number);
            for document in scene.documents.iter().chain(&scene.commands) {
                let text = print_document(document);
                let read = parse_document(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
                assert_eq!(print_document(&read), text);
            }
        }
    }
}
