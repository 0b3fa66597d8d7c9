//! Sorted streams of partial results become groups of equal keys.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use banyan_document::{Collator, field};
use bson::RawDocumentBuf;

use super::error::JobError;

/// The documents `{_id, value}` of one key, from however many streams.
pub struct Group {
    pub documents: Vec<RawDocumentBuf>,
}

pub type Input<E> = Box<dyn Iterator<Item = Result<RawDocumentBuf, E>> + Send>;

/// A merge of inputs that are each in key order.
pub struct Merge<E> {
    inputs: Vec<Input<E>>,
    /// The next document of each input.
    heads: Vec<Option<RawDocumentBuf>>,
    /// The inputs that have a head, least key first; equal keys in the order of the inputs.
    order: BinaryHeap<Reverse<(Vec<u8>, usize)>>,
    /// Inputs whose next document has not been asked for yet.
    waiting: Vec<usize>,
    /// The memory of keys that are done with.
    spare: Vec<Vec<u8>>,
    /// How the keys are compared as strings.
    collator: Option<Collator>,
}

impl<E: From<JobError>> Merge<E> {
    pub fn new(inputs: Vec<Input<E>>, collator: Option<Collator>) -> Self {
        let heads = inputs.iter().map(|_| None).collect();
        let waiting = (0..inputs.len()).collect();
        Merge {
            inputs,
            heads,
            order: BinaryHeap::new(),
            waiting,
            spare: Vec::new(),
            collator,
        }
    }

    fn fetch(&mut self) -> Result<(), E> {
        while let Some(index) = self.waiting.pop() {
            if let Some(document) = self.inputs[index].next() {
                let document = document?;
                let mut key = self.spare.pop().unwrap_or_default();
                let id = field(&document, "_id").ok_or(JobError::Protocol)?;
                banyan_document::key::encode_collated(id, self.collator.as_ref(), &mut key);
                self.heads[index] = Some(document);
                self.order.push(Reverse((key, index)));
            }
        }
        Ok(())
    }

    fn set_aside(&mut self, mut key: Vec<u8>) {
        key.clear();
        self.spare.push(key);
    }

    fn next_group(&mut self) -> Result<Option<Group>, E> {
        self.fetch()?;
        let Some(Reverse((key, first))) = self.order.pop() else {
            return Ok(None);
        };
        let mut documents: Vec<RawDocumentBuf> = self.heads[first].take().into_iter().collect();
        self.waiting.push(first);
        // An input may hold a key more than once: it is asked again before the group is closed.
        loop {
            self.fetch()?;
            match self.order.peek() {
                Some(Reverse((next, _))) if *next == key => {}
                _ => {
                    self.set_aside(key);
                    return Ok(Some(Group { documents }));
                }
            }
            if let Some(Reverse((equal, index))) = self.order.pop() {
                documents.extend(self.heads[index].take());
                self.waiting.push(index);
                self.set_aside(equal);
            }
        }
    }
}

impl<E: From<JobError>> Iterator for Merge<E> {
    type Item = Result<Group, E>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_group().transpose()
    }
}

#[cfg(test)]
mod tests {
    use bson::rawdoc;

    use super::*;

    fn input(keys: &[f64]) -> Input<JobError> {
        let documents: Vec<_> = keys
            .iter()
            .map(|key| Ok(rawdoc! { "_id": *key, "value": 1 }))
            .collect();
        Box::new(documents.into_iter())
    }

    #[test]
    fn equal_keys_meet() {
        let integers: Vec<_> = [1, 3]
            .map(|key| Ok(rawdoc! { "_id": key, "value": 2 }))
            .into();
        let inputs = vec![
            input(&[1.0, 2.0, 2.0]),
            Box::new(integers.into_iter()),
            input(&[]),
        ];
        let groups: Vec<usize> = Merge::new(inputs, None)
            .map(|group| group.unwrap().documents.len())
            .collect();
        assert_eq!(groups, [2, 2, 1]);
    }

    #[test]
    fn an_error_comes_through() {
        let inputs: Vec<Input<JobError>> = vec![
            input(&[1.0]),
            Box::new(std::iter::once(Err(JobError::Interrupted))),
        ];
        assert!(Merge::new(inputs, None).next().unwrap().is_err());
    }
}
