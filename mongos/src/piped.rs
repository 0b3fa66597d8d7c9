//! The end of a pipeline, run over the merged results of the shards.

use std::sync::Arc;

use banyan_query::pipeline::{Execution, Flow};
use banyan_wire::{CommandError, Doc};

use crate::ending::Ending;
use crate::errors::query_error;
use crate::merge::Merge;

/// A pipeline over the merged results of the shards.
pub struct Piped {
    source: Option<Merge>,
    execution: Execution,
    pub ending: Arc<Ending>,
}

impl Piped {
    pub fn new(source: Merge, execution: Execution, ending: Arc<Ending>) -> Piped {
        Piped {
            source: Some(source),
            execution,
            ending,
        }
    }

    pub async fn next(&mut self) -> Result<Option<Doc>, CommandError> {
        loop {
            if let Some(document) = self.execution.pop().map_err(query_error)? {
                return Ok(Some(document.into()));
            }
            let Some(source) = &mut self.source else {
                if self.execution.drain().map_err(query_error)? {
                    continue;
                }
                return Ok(None);
            };
            let flow = match self.ending.while_awaited(source.next()).await? {
                Some(document) => self.execution.push(&document).map_err(query_error)?,
                None => Flow::Stop,
            };
            if flow == Flow::Stop {
                source.kill().await;
                self.source = None;
            }
        }
    }

    pub async fn kill(&mut self) {
        if let Some(mut source) = self.source.take() {
            source.kill().await;
        }
    }
}
