//! The house rules that a test can hold: the floors between crates, and pages that name real files.

use std::collections::HashMap;
use std::fs;
use std::process::Command;

use banyan_tests::repository;

/// The floor of each crate: it may depend only on those of lower floors.
const FLOORS: &[(&str, u32)] = &[
    ("banyan-crash", 0),
    ("banyan-document", 0),
    ("banyan-geo", 0),
    ("banyan-process", 0),
    ("banyan-text", 0),
    ("banyan-wire", 1),
    ("banyan-query", 1),
    ("banyan-storage", 1),
    ("banyan-sharding", 1),
    ("banyan-consensus", 1),
    ("banyan-execution", 2),
    ("banyan-spill", 2),
    ("banyan-script", 2),
    ("banyan-replication", 3),
    ("banyan-security", 2),
    ("banyan-access", 3),
    ("banyan-node", 4),
    ("banyan-configsvr", 5),
    ("banyan-mongos", 5),
    ("banyan-shell", 5),
    ("banyan-mongod", 6),
];

/// These may depend on everything.
const TEST_PACKAGES: &[&str] = &[
    "banyan-tests",
    "banyan-bench",
    "banyan-diff",
    "banyan-faults",
    "banyan-fuzz",
    "banyan-sim",
];

fn workspace_edges() -> Vec<(String, String)> {
    let output = Command::new(env!("CARGO"))
        .args([
            "metadata",
            "--format-version=1",
            "--no-deps",
            "--locked",
            "--offline",
        ])
        .current_dir(repository())
        .output()
        .expect("cargo answers");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let mut edges = Vec::new();
    for package in metadata["packages"].as_array().expect("packages") {
        let name = package["name"].as_str().expect("a package has a name");
        for dependency in package["dependencies"].as_array().expect("dependencies") {
            let on = dependency["name"]
                .as_str()
                .expect("a dependency has a name");
            let shipped = dependency["kind"].is_null();
            if shipped && on.starts_with("banyan-") {
                edges.push((name.to_owned(), on.to_owned()));
            }
        }
    }
    edges
}

#[test]
fn no_crate_depends_on_its_own_floor_or_a_higher_one() {
    let floors: HashMap<&str, u32> = FLOORS.iter().copied().collect();
    let edges = workspace_edges();
    assert!(edges.len() > 10, "the workspace's edges were read");
    for (from, on) in edges {
        let Some(floor) = floors.get(from.as_str()) else {
            assert!(TEST_PACKAGES.contains(&&*from), "{from} has no floor");
            continue;
        };
        let below = floors
            .get(on.as_str())
            .unwrap_or_else(|| panic!("{on} has no floor"));
        assert!(
            below < floor,
            "{from} (floor {floor}) depends on {on} (floor {below})"
        );
    }
}

#[test]
fn only_script_and_shell_name_v8() {
    for manifest in [
        "mongos",
        "configsvr",
        "crates/node",
        "crates/replication",
        "crates/query",
        "crates/storage",
    ] {
        let path = repository().join(manifest).join("Cargo.toml");
        let text = fs::read_to_string(&path).expect("the manifest is there");
        for name in ["deno_core", "v8", "banyan-script"] {
            let named = text
                .lines()
                .any(|line| line.starts_with(&format!("{name}.")));
            assert!(!named, "{} names {name}", path.display());
        }
    }
}

#[test]
fn what_the_pages_name_exists() {
    for page in ["ARCHITECTURE.md", "README.md"] {
        let text = fs::read_to_string(repository().join(page)).expect("the page is there");
        // Every other part is a name in the code; those between say how it goes on.
        let parts: Vec<&str> = text.split('`').collect();
        for (at, word) in parts.iter().enumerate().skip(1).step_by(2) {
            if !is_path(word) {
                continue;
            }
            let path = repository().join(word.trim_start_matches("./"));
            assert!(path.exists(), "{page} names {word}, which does not exist");
            // `path`, `name`: the file has something of that name.
            if let Some([between, name]) = parts.get(at + 1..at + 3)
                && between.trim_end() == ","
                && !is_path(name)
            {
                let code = fs::read_to_string(&path).expect("a file that can be read");
                assert!(
                    code.contains(name),
                    "{page} names {name}, which is not in {word}"
                );
            }
        }
    }
}

fn is_path(word: &str) -> bool {
    let folders = [
        "crates/",
        "mongod/",
        "mongos/",
        "configsvr/",
        "shell/",
        "tests/",
        "scripts/",
    ];
    let word = word.trim_start_matches("./");
    folders.iter().any(|folder| word.starts_with(folder))
        && !word.contains([' ', ':', '<', '*', '{', '$', '='])
}
