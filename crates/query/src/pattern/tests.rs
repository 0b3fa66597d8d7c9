use super::*;

fn matches(pattern: &str, options: &str, text: &str) -> bool {
    Pattern::compile(pattern, options)
        .unwrap()
        .is_match(text)
        .unwrap()
}

#[test]
fn reads_pcre_syntax() {
    assert!(!matches(r"^\w$", "", "é"));
    assert!(matches("é", "i", "É"));
    assert!(matches("a$", "", "a\n"));
    assert!(!matches("a$", "", "a\nb"));
    assert!(matches("a$", "m", "a\nb"));
    assert!(matches("a{", "", "a{"));
    assert!(matches("^a{2}$", "", "aa"));
    assert!(matches("^a{,2}$", "", "a{,2}"));
    assert!(matches(r"\Qa.b\E", "", "a.b"));
    assert!(!matches(r"\Qa.b\E", "", "axb"));
    assert!(matches("(?=x)x", "", "x"));
    assert!(matches(r"(a)\1", "i", "AA"));
    assert!(matches(r"[\w-]+@[a&&b]", "", "x-y@&"));
    assert!(matches("[[]", "", "["));
    assert!(matches("[]]", "", "]"));
    assert!(matches("[[:alpha:]]", "", "q"));
    assert!(matches(r"a\/b", "", "a/b"));
    assert!(matches("a b # comment", "x", "ab"));
    assert!(matches("a.b", "s", "a\nb"));
}

#[test]
fn refuses_with_mongodbs_codes() {
    let code = |p: &str, o: &str| Pattern::compile(p, o).unwrap_err().kind;
    assert_eq!(code("(", ""), ErrorKind::Location(51091));
    assert_eq!(code("a", "q"), ErrorKind::Location(51108));
}

#[test]
fn knows_the_prefix_of_anchored_patterns() {
    let prefix = |p: &str, o: &str| Pattern::compile(p, o).unwrap().prefix();
    assert_eq!(prefix("^abc", ""), Some(("abc".into(), true)));
    assert_eq!(prefix("^abc.*", ""), Some(("abc".into(), false)));
    assert_eq!(prefix("^abc*", ""), Some(("ab".into(), false)));
    assert_eq!(prefix(r"^a\.b", ""), Some(("a.b".into(), true)));
    assert_eq!(prefix(r"^a\d", ""), Some(("a".into(), false)));
    assert_eq!(prefix("^a+b", ""), Some(("a".into(), false)));
    assert_eq!(prefix("^a|b", ""), None);
    assert_eq!(prefix("^abc", "i"), None);
    assert_eq!(prefix("abc", ""), None);
}

/// As the reference answers, which some engines do not.
#[test]
fn means_what_pcre_means() {
    assert!(matches(r"^\v$", "", "\n"));
    assert!(!matches(r"^\v$", "", "v"));
    assert!(matches(r"^\012$", "", "\n"));
    assert!(matches(r"^a\Rb$", "", "a\r\nb"));
    assert!(matches(r"^\R$", "", "\u{2028}"));
    assert!(matches(r"a\Bb", "", "ab"));
    assert!(!matches(r"a\B", "", "a"));
    assert!(matches(r"^(\((?:[^()]|(?1))*\))$", "", "((a)b)"));
    assert!(!matches(r"^(\((?:[^()]|(?1))*\))$", "", "((a)b"));
    assert!(!matches(r"a++a", "", "aaa"));
    assert!(!matches(r"(?>a|ab)c", "", "abc"));
    assert!(matches(r"^\X$", "", "e\u{301}"));
    assert!(!matches("^b", "m", "a\n"));
    assert!(!matches("^$", "m", "a\n"));
    assert!(!matches(r"^\w$", "i", "\u{17f}"));
    assert!(matches("^s$", "i", "\u{17f}"));
    assert!(!matches("a$b", "", "ab"));
    assert!(matches("a$\n", "", "a\n"));
    assert!(matches("^a{ 2 }$", "", "a{ 2 }"));
    assert!(matches(r"^\x{e9}\p{L}{2}[{,2}]$", "", "ébc{"));
}

#[test]
fn a_match_that_goes_on_for_ever_is_an_error() {
    let pattern = Pattern::compile(r"(a+)+\1?\d", "").unwrap();
    let error = pattern.is_match(&"a".repeat(3000)).unwrap_err();
    assert_eq!(QueryError::from(error).kind, ErrorKind::Location(51156));
    // Each step goes over the whole text.
    let pattern = Pattern::compile(r"(?:(?=.*+).)*[yz]()\1", "").unwrap();
    assert!(pattern.is_match(&"a".repeat(4 << 20)).is_err());
    // What asks for memory.
    let pattern = Pattern::compile(r"(a|b)*\1[cd]", "").unwrap();
    assert!(pattern.is_match(&"ab".repeat(1 << 20)).is_err());
    // Recursion that goes nowhere.
    let pattern = Pattern::compile("(?R)", "").unwrap();
    assert!(pattern.is_match("a").is_err());
    // The thread goes on as before.
    assert!(matches("(?=a)a", "", "a"));
}

#[test]
fn a_match_ends_when_its_operation_does() {
    let started = std::time::Instant::now();
    let budget = Budget::allowance(1000);
    let pattern = Compiler::new(budget)
        .compile(r"(?:(?=.*+).)*[yz]()\1", "")
        .unwrap();
    let error = pattern.is_match(&"a".repeat(4 << 20)).unwrap_err();
    assert_eq!(QueryError::from(error).kind, ErrorKind::ExceededMemoryLimit);
    assert!(
        started.elapsed().as_millis() < 900,
        "{:?}",
        started.elapsed()
    );
}

#[test]
fn compiled_patterns_stay_small() {
    let compiler = Compiler::default();
    let patterns: Vec<_> = (0..300)
        .map(|n| compiler.compile(&format!(r"x{n}(\pL{{150}})"), "").unwrap())
        .collect();
    assert!(
        patterns[7]
            .is_match(&format!("x7{}", "é".repeat(150)))
            .unwrap()
    );
    assert!(compiler.bytes.get() < 1024 * 1024);
    let large = (0..10_000).map(|n| compiler.compile(&format!("{n}(?:ab){{3000}}"), ""));
    let error = large.filter_map(Result::err).next().unwrap();
    assert_eq!(error.kind, ErrorKind::ExceededMemoryLimit);
    let error = Pattern::compile(&"a".repeat(40_000), "").unwrap_err();
    assert_eq!(error.kind, ErrorKind::Location(51091));
}

/// Puts patterns together at random, and asks both engines.
#[test]
fn both_engines_give_one_answer() {
    use rand::prelude::*;
    const PARTS: [&str; 40] = [
        "a", "b", "k", "S", "é", "\n", " ", "-", ".", "^", "$", "|", "(", ")", "(?:", "*", "+",
        "?", "{2}", "{0,1}", "{1,}", "{", "}", "[ab]", "[^a]", "[a-k]", r"[\w-]", "[]", "]", r"\d",
        r"\w", r"\W", r"\s", r"\S", r"\b", r"\.", r"\n", "#", "{,2}", "1",
    ];
    const TEXT: [&str; 14] = [
        "a", "b", "k", "K", "s", "\u{17f}", "\u{212a}", "é", "\n", " ", "-", ".", "1", "\r\n",
    ];
    let mut random = StdRng::seed_from_u64(8);
    let mut compared = 0;
    for _ in 0..5_000 {
        let pick = |parts: &[&str], count, random: &mut StdRng| -> String {
            (0..count)
                .filter_map(|_| parts.choose(random).copied())
                .collect()
        };
        let length = random.random_range(1..9);
        let source = pick(&PARTS, length, &mut random);
        let options = *["", "i", "m", "s", "ims"].choose(&mut random).unwrap();
        let Ok(pattern) = Pattern::compile(&source, options) else {
            continue;
        };
        if pattern.compiled.linear.is_none() {
            continue;
        }
        for _ in 0..10 {
            let length = random.random_range(0..7);
            let text = pick(&TEXT, length, &mut random);
            assert!(pattern.engine(&text).is_some(), "/{source:?}/{options}");
            assert_eq!(
                pattern.is_match(&text),
                pattern.compiled.code.is_match(&text, &Budget::unlimited()),
                "/{source:?}/{options} on {text:?}"
            );
            compared += 1;
        }
    }
    assert!(compared > 5_000, "{compared}");
}
