use banyan_document::extjson;
use bson::RawDocumentBuf;

use super::*;
use crate::budget::Budget;
use crate::golden;
use crate::spill::Spilled;
use crate::spill::tests::spilling;

/// Prints the positions of the block's documents in each order.
#[test]
fn golden() {
    golden::check("src/sort/sort.golden", |commands| {
        let mut documents = Vec::new();
        let mut output = Vec::new();
        for command in commands {
            let (name, argument) = golden::split(command);
            let parsed = extjson::parse(argument).unwrap();
            match name {
                "doc" => documents.push(parsed),
                _ => {
                    let order = match sorted(&parsed, &documents) {
                        Ok(order) => order.join(" "),
                        Err(error) => format!("error {} {}", error.kind.code(), error.message),
                    };
                    output.push(format!("{argument} => {order}"));
                }
            }
        }
        output
    });
}

fn sorted(sort: &RawDocument, documents: &[RawDocumentBuf]) -> Result<Vec<String>, QueryError> {
    let pattern = SortPattern::parse(sort, None)?;
    let mut sorter = Sorter::new(None, &Budget::unlimited());
    for (index, document) in documents.iter().enumerate() {
        sorter.push(&pattern.key(document)?, &index)?;
    }
    let sorted = all(sorter.finish()?);
    Ok(sorted.iter().map(usize::to_string).collect())
}

impl Spilled for usize {
    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.to_le_bytes());
    }

    fn read(bytes: &[u8]) -> Option<usize> {
        bytes.try_into().ok().map(usize::from_le_bytes)
    }
}

fn all(mut sorted: Sorted<usize>) -> Vec<usize> {
    std::iter::from_fn(|| sorted.next_item().unwrap()).collect()
}

#[test]
fn keeps_the_first_of_a_limit() {
    let mut sorter = Sorter::new(Some(3), &Budget::unlimited());
    for n in [5u8, 1, 4, 1, 3, 9, 0] {
        sorter.push(&[n], &usize::from(n)).unwrap();
    }
    assert_eq!(sorter.len(), 3);
    assert_eq!(all(sorter.finish().unwrap()), [0, 1, 1]);
}

const SORT_BYTES: &str = "internalQueryMaxBlockingSortMemoryUsageBytes";

#[test]
fn refuses_more_than_its_memory() {
    let budget = spilling(&[(SORT_BYTES, 1000)]);
    budget.allow_disk(false);
    let mut sorter = Sorter::new(None, &budget);
    let mut result = Ok(());
    for n in 0..40 {
        result = result.and_then(|()| sorter.push(&[n], &usize::from(n)));
    }
    let error = result.unwrap_err();
    assert_eq!(
        error.kind,
        ErrorKind::QueryExceededMemoryLimitNoDiskUseAllowed
    );
    assert!(error.message.contains("of 1000 bytes"), "{error}");
    let mut top = Sorter::new(Some(2), &budget);
    for n in 0..200u8 {
        top.push(&[255 - n], &usize::from(n)).unwrap();
    }
    assert_eq!(top.stats().spills, 0);
}

/// Whatever the memory and the limit, the same items come in the same order.
#[test]
fn spilled_or_not_the_order_is_the_same() {
    let keys: Vec<u16> = (0..5000_u32)
        .map(|n| (n.wrapping_mul(2_654_435_761) >> 20) as u16 % 700)
        .collect();
    for limit in [None, Some(1), Some(60), Some(2000), Some(4999), Some(9000)] {
        let mut expected: Vec<usize> = (0..keys.len()).collect();
        expected.sort_by_key(|at| keys[*at]);
        expected.truncate(limit.unwrap_or(usize::MAX));
        for bytes_max in [0, 700, 5000, 100_000, 100 << 20] {
            let budget = spilling(&[(SORT_BYTES, bytes_max)]);
            let mut sorter = Sorter::new(limit, &budget);
            for (at, key) in keys.iter().enumerate() {
                let key = key.to_be_bytes();
                if sorter.wants(&key) {
                    sorter.push(&key, &at).unwrap();
                }
            }
            let stats = sorter.stats();
            assert_eq!(budget.used_disk(), stats.spills > 0);
            if limit.is_none() {
                assert_eq!(stats.spills > 0, bytes_max <= 100_000);
                assert_eq!(sorter.len(), 5000);
            }
            assert_eq!(all(sorter.finish().unwrap()), expected, "{bytes_max}");
            assert_eq!(budget.memory().held(), 0);
        }
    }
}

/// Several sorters that see parts of an input, in any order, come to what one comes to.
#[test]
fn parts_are_put_together_in_the_order_of_the_input() {
    let keys: Vec<String> = (0..6000_u32)
        .map(|n| format!("a common beginning {}", n.wrapping_mul(2_654_435_761) >> 24))
        .map(|key| format!("{key}\0"))
        .collect();
    // Who sees which parts, each of a thousand items.
    let divisions: [&[&[usize]]; 4] = [
        &[&[0, 1, 2, 3, 4, 5]],
        &[&[3, 1, 5], &[4, 0, 2]],
        &[&[5], &[], &[4, 3, 2, 1, 0]],
        &[&[2, 0], &[5, 4], &[1, 3]],
    ];
    for limit in [None, Some(1), Some(10), Some(1500), Some(7000)] {
        let mut expected: Vec<usize> = (0..keys.len()).collect();
        expected.sort_by_key(|at| &keys[*at]);
        expected.truncate(limit.unwrap_or(usize::MAX));
        for bytes_max in [0, 20_000, 300_000, 100 << 20] {
            for division in divisions {
                let budget = spilling(&[(SORT_BYTES, bytes_max)]);
                let sorters = Sorters::new(limit, &budget);
                let fill = |parts: &&[usize]| {
                    let mut sorter = sorters.make();
                    for part in *parts {
                        let start = part * 1000;
                        sorter.begin(start as u64 + 1);
                        for (at, key) in keys.iter().enumerate().skip(start).take(1000) {
                            sorter.push(key.as_bytes(), &at).unwrap();
                        }
                    }
                    sorter.seal().unwrap();
                    sorter
                };
                let filled: Vec<Sorter<usize>> = division.iter().map(fill).collect();
                let spills: u64 = filled.iter().map(|sorter| sorter.stats().spills).sum();
                assert_eq!(spills > 0, budget.used_disk());
                let sorted = Sorter::merge(filled).unwrap();
                assert_eq!(all(sorted), expected, "{limit:?} {bytes_max} {division:?}");
                assert_eq!(budget.memory().held(), 0);
            }
        }
    }
}

#[test]
fn sorters_of_a_stage_share_its_memory() {
    let budget = spilling(&[(SORT_BYTES, 4 << 20)]);
    budget.allow_disk(false);
    let sorters = Sorters::new(None, &budget);
    let fill = |sorter: &mut Sorter<RawDocumentBuf>| {
        let document = bson::rawdoc! { "x": "y".repeat(1000) };
        (0..2500_u32).try_for_each(|n| sorter.push(&n.to_be_bytes(), &document))
    };
    // Each alone would fit.
    let mut first = sorters.make();
    fill(&mut first).unwrap();
    let error = fill(&mut sorters.make()).unwrap_err();
    assert_eq!(error.kind.code(), 292);
    drop(first);
    fill(&mut sorters.make()).unwrap();
    assert_eq!(budget.memory().held(), 0);
}

#[test]
fn a_sort_ends_when_its_budget_does() {
    let mut sorter = Sorter::new(None, &Budget::allowance(300_000));
    for n in 0..40_000_u32 {
        sorter
            .push(&n.reverse_bits().to_be_bytes(), &0_usize)
            .unwrap();
    }
    assert!(sorter.finish().is_err());
}
