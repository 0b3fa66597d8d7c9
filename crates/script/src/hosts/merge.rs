//! Sorted streams of partial results become groups of equal keys.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use banyan_document::{Collator, field};
use bson::RawDocument;

use super::error::JobError;

/// Documents `{_id, value}` in the order of their keys, one at hand at a time.
pub trait SortedDocuments<E>: Send {
    /// Goes on to the next document. False: there is none.
    fn advance(&mut self) -> Result<bool, E>;

    /// The document that it has come to.
    fn document(&self) -> &[u8];
}

/// A merge of inputs that are each in key order.
pub struct Merge<E> {
    inputs: Vec<Box<dyn SortedDocuments<E>>>,
    /// The inputs that have a document at hand, least key first; equal keys in the order of the inputs.
    order: BinaryHeap<Reverse<(Vec<u8>, usize)>>,
    /// Inputs that have not gone on yet from the document at hand.
    waiting: Vec<usize>,
    /// The memory of keys that are done with.
    spare: Vec<Vec<u8>>,
    /// How the keys are compared as strings.
    collator: Option<Collator>,
}

impl<E: From<JobError>> Merge<E> {
    pub fn new(inputs: Vec<Box<dyn SortedDocuments<E>>>, collator: Option<Collator>) -> Self {
        let waiting = (0..inputs.len()).collect();
        Merge {
            inputs,
            order: BinaryHeap::new(),
            waiting,
            spare: Vec::new(),
            collator,
        }
    }

    fn fetch(&mut self) -> Result<(), E> {
        while let Some(index) = self.waiting.pop() {
            let input = &mut self.inputs[index];
            if input.advance()? {
                let mut key = self.spare.pop().unwrap_or_default();
                let document = RawDocument::from_bytes(input.document());
                let id = document.ok().and_then(|document| field(document, "_id"));
                let id = id.ok_or(JobError::Protocol)?;
                banyan_document::key::encode_collated(id, self.collator.as_ref(), &mut key);
                self.order.push(Reverse((key, index)));
            }
        }
        Ok(())
    }

    fn set_aside(&mut self, mut key: Vec<u8>) {
        key.clear();
        self.spare.push(key);
    }

    /// Appends the documents of the next key, from however many inputs, end to end: how many there are.
    /// None: all inputs have ended.
    pub fn next_group(&mut self, out: &mut Vec<u8>) -> Result<u32, E> {
        self.fetch()?;
        let Some(Reverse((key, first))) = self.order.pop() else {
            return Ok(0);
        };
        out.extend_from_slice(self.inputs[first].document());
        self.waiting.push(first);
        let mut count: u32 = 1;
        // An input may hold a key more than once: it is asked again before the group is closed.
        loop {
            self.fetch()?;
            match self.order.peek() {
                Some(Reverse((next, _))) if *next == key => {}
                _ => {
                    self.set_aside(key);
                    return Ok(count);
                }
            }
            if let Some(Reverse((equal, index))) = self.order.pop() {
                out.extend_from_slice(self.inputs[index].document());
                self.waiting.push(index);
                self.set_aside(equal);
                // One for each run and shard.
                count = count.saturating_add(1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use bson::{RawDocumentBuf, rawdoc};

    use super::*;

    struct Listed {
        documents: std::vec::IntoIter<Result<RawDocumentBuf, JobError>>,
        current: RawDocumentBuf,
    }

    impl SortedDocuments<JobError> for Listed {
        fn advance(&mut self) -> Result<bool, JobError> {
            match self.documents.next() {
                Some(document) => self.current = document?,
                None => return Ok(false),
            }
            Ok(true)
        }

        fn document(&self) -> &[u8] {
            self.current.as_bytes()
        }
    }

    fn listed(
        documents: Vec<Result<RawDocumentBuf, JobError>>,
    ) -> Box<dyn SortedDocuments<JobError>> {
        Box::new(Listed {
            documents: documents.into_iter(),
            current: RawDocumentBuf::new(),
        })
    }

    fn input(keys: &[f64]) -> Box<dyn SortedDocuments<JobError>> {
        let documents = keys
            .iter()
            .map(|key| Ok(rawdoc! { "_id": *key, "value": 1 }));
        listed(documents.collect())
    }

    #[test]
    fn equal_keys_meet() {
        let integers = [1, 3].map(|key| Ok(rawdoc! { "_id": key, "value": 2 }));
        let inputs = vec![input(&[1.0, 2.0, 2.0]), listed(integers.into()), input(&[])];
        let mut merge = Merge::new(inputs, None);
        let mut out = Vec::new();
        let mut groups = Vec::new();
        loop {
            match merge.next_group(&mut out).unwrap() {
                0 => break,
                count => groups.push(count),
            }
        }
        assert_eq!(groups, [2, 2, 1]);
        let one = rawdoc! { "_id": 1.0, "value": 1 };
        assert!(out.starts_with(one.as_bytes()));
    }

    #[test]
    fn an_error_comes_through() {
        let inputs = vec![input(&[1.0]), listed(vec![Err(JobError::Interrupted)])];
        assert!(
            Merge::new(inputs, None)
                .next_group(&mut Vec::new())
                .is_err()
        );
    }
}
