use banyan_document::extjson;
use bson::RawDocumentBuf;

use super::*;
use crate::golden;

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
    let mut sorter = Sorter::new(None);
    for (index, document) in documents.iter().enumerate() {
        sorter.push(pattern.key(document)?, index, 8)?;
    }
    let sorted = sorter.finish(&Budget::unlimited())?;
    Ok(sorted.map(|index| index.to_string()).collect())
}

#[test]
fn keeps_the_first_of_a_limit() {
    let mut sorter = Sorter::new(Some(3));
    for n in [5u8, 1, 4, 1, 3, 9, 0] {
        sorter.push(vec![n], n, 1).unwrap();
    }
    assert!(!sorter.wants(&[2]));
    assert_eq!(sorter.len(), 3);
    assert_eq!(
        sorter
            .finish(&Budget::unlimited())
            .unwrap()
            .collect::<Vec<_>>(),
        [0, 1, 1]
    );
}

#[test]
fn refuses_more_than_its_memory() {
    let mut sorter = Sorter::with_memory(None, 1000);
    let mut result = Ok(());
    for n in 0..20u8 {
        result = result.and_then(|()| sorter.push(vec![n], n, 100));
    }
    let error = result.unwrap_err();
    assert_eq!(
        error.kind,
        ErrorKind::QueryExceededMemoryLimitNoDiskUseAllowed
    );
    let mut top = Sorter::with_memory(Some(2), 1000);
    for n in 0..200u8 {
        top.push(vec![255 - n], n, 100).unwrap();
    }
}
