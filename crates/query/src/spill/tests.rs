use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::memory::Memory;

/// Files in memory, counted as long as they are there.
#[derive(Debug, Default)]
pub(crate) struct Files(pub Arc<AtomicUsize>);

struct File(Vec<Vec<u8>>, Arc<AtomicUsize>);

impl SpillStore for Files {
    fn create(&self) -> Result<Box<dyn SpillFile>, QueryError> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(Box::new(File(Vec::new(), self.0.clone())))
    }
}

impl SpillFile for File {
    fn append(&mut self, block: &[u8]) -> Result<u64, QueryError> {
        self.0.push(block.to_vec());
        Ok(self.0.len() as u64 - 1)
    }

    fn read(&self, place: u64, block: &mut Vec<u8>) -> Result<u64, QueryError> {
        block.clone_from(&self.0[place as usize]);
        Ok(place + 1)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        self.1.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A budget whose stages spill, with these parameters.
pub(crate) fn spilling(parameters: &[(&str, i64)]) -> Budget {
    let memory = Memory::new(Some(Box::new(Files::default())), usize::MAX);
    for (name, value) in parameters {
        assert!(memory.set_parameter(name, *value), "{name}");
    }
    Budget::with_memory(Arc::new(memory))
}

fn random(seed: &mut u64) -> u64 {
    *seed = seed
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    *seed >> 33
}

#[test]
fn runs_come_back_in_order_and_equal_keys_as_they_were_written() {
    for (runs_count, records) in [(0, 0), (1, 1), (3, 40), (RUNS_MAX, 5), (200, 30)] {
        let open = Arc::new(AtomicUsize::new(0));
        let store = Files(open.clone());
        let memory = Arc::new(Memory::new(Some(Box::new(store)), usize::MAX));
        let mut runs = Runs::new(&Budget::with_memory(memory), None);
        let (mut expected, mut seed) = (Vec::new(), 7);
        for run in 0..runs_count {
            let mut keys: Vec<u64> = (0..records).map(|_| random(&mut seed) % 50).collect();
            keys.sort_unstable();
            let write = |writer: &mut RunWriter<'_>| {
                for key in &keys {
                    // Some records are larger than a block.
                    let value = vec![run as u8; if *key == 7 { 40_000 } else { 9 }];
                    writer.push(&key.to_be_bytes(), |out| out.extend_from_slice(&value))?;
                }
                Ok(())
            };
            runs.write(write).unwrap();
            expected.extend(keys.iter().map(|key| (*key, run as u8)));
        }
        assert_eq!(runs.written.runs, runs_count as u64);
        expected.sort_by_key(|(key, _)| *key);
        let mut merge = runs.merge().unwrap();
        let mut found = Vec::new();
        while let Some((key, value)) = merge.top() {
            found.push((u64::from_be_bytes(key.try_into().unwrap()), value[0]));
            merge.advance().unwrap();
        }
        assert_eq!(found, expected);
        drop(merge);
        assert_eq!(open.load(Ordering::Relaxed), 0);
    }
}
