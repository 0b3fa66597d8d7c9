//! The golden files, played against a Banyan of the built programs: needs no reference.

use std::fs;

use banyan_diff::known::Known;
use banyan_diff::record::{files, known_file, read, replay};
use banyan_diff::side::Side;
use banyan_tests::Launch;

#[tokio::test(flavor = "multi_thread")]
async fn replies_as_the_reference_gives_them() {
    let process = Launch::mongod().start().await;
    let known = Known::read(&known_file()).unwrap();
    let mut side = Side::new(&process.host(), "goldens");
    side.prepare().unwrap();
    let (mut count, mut failures) = (0, Vec::new());
    for file in files().unwrap() {
        let lines = read(&fs::read_to_string(&file).unwrap()).unwrap();
        let (played, failed) = replay(&lines, &mut side, &known);
        count += played;
        for failure in failed {
            let name = file.file_name().unwrap().to_string_lossy().into_owned();
            failures.push(format!(
                "{name}:{} {} at {}\n{}\n// expected {}\n// found    {}",
                failure.line,
                failure.difference.class,
                failure.difference.path,
                failure.case.shell_text(),
                failure.difference.expected,
                failure.difference.found,
            ));
        }
    }
    assert!(count > 300, "only {count} golden cases");
    let shown = failures
        .iter()
        .take(20)
        .cloned()
        .collect::<Vec<_>>()
        .join("\n\n");
    assert!(
        failures.is_empty(),
        "{} of {count} differ\n{shown}",
        failures.len()
    );
}
