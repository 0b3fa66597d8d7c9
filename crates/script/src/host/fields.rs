//! Which fields of its document a function reads.
//!
//! Where every use of `this` in the source is `this.name`, and nothing else can reach the
//! document, only the named fields need to be made. The test works on the plain text: a `this`
//! inside a string or a comment at worst adds a field or gives the question up. The answer
//! "everything" is always right.

/// Words that can reach the document, or the source, in ways that the text does not show.
const OPAQUE: [&str; 3] = ["eval", "Function", "with"];

/// Reading one of these means the object as such, not a field.
const INHERITED: [&str; 13] = [
    "__proto__",
    "__defineGetter__",
    "__defineSetter__",
    "__lookupGetter__",
    "__lookupSetter__",
    "constructor",
    "hasOwnProperty",
    "isPrototypeOf",
    "propertyIsEnumerable",
    "toLocaleString",
    "toString",
    "valueOf",
    "toJSON",
];

/// More fields than this are made as whole objects.
const FIELDS_MAX: usize = 64;

/// The names that `source` reads of `this`, without repetition. None: it may read anything.
pub fn fields_read(source: &str) -> Option<Vec<String>> {
    // A name written with an escape could be any of the words below.
    if source.contains("\\u") || words(source).any(|(_, word)| OPAQUE.contains(&word)) {
        return None;
    }
    let mut fields: Vec<String> = Vec::new();
    for (end, _) in words(source).filter(|(_, word)| *word == "this") {
        let name = member(&source[end..])?;
        if INHERITED.contains(&name) {
            return None;
        }
        if !fields.iter().any(|known| known == name) {
            fields.push(name.to_string());
        }
    }
    if fields.len() > FIELDS_MAX {
        None
    } else {
        Some(fields)
    }
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_' || c == '$'
}

/// The words of the text, each with the offset of its end.
fn words(source: &str) -> impl Iterator<Item = (usize, &str)> {
    source
        .split(|c| !is_word(c))
        .filter(|word| !word.is_empty())
        .map(|word| {
            let start = word.as_ptr() as usize - source.as_ptr() as usize;
            (start + word.len(), word)
        })
}

/// `x` of `.x` or `?.x` at the head of `rest`, unless it is called with the document as `this`.
fn member(rest: &str) -> Option<&str> {
    let rest = rest.trim_start();
    let rest = rest
        .strip_prefix("?.")
        .or_else(|| rest.strip_prefix('.'))?
        .trim_start();
    let length = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
    let (name, after) = rest.split_at(length);
    if name.is_empty() || !name.is_ascii() || name.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    let after = after.trim_start();
    let called = ["(", "`", "?.(", "/*", "//"]
        .iter()
        .any(|call| after.starts_with(call));
    if called { None } else { Some(name) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(source: &str) -> Option<String> {
        fields_read(source).map(|fields| fields.join(","))
    }

    #[test]
    fn plain_reads_are_found() {
        let map = "function() { for (var i in this.tags) { emit(this.tags[i], this . n.m); } }";
        assert_eq!(fields(map).as_deref(), Some("tags,n"));
        assert_eq!(fields("function() { emit(1, 1) }").as_deref(), Some(""));
        assert_eq!(
            fields("function() { emit(this?.a, this.$b) }").as_deref(),
            Some("a,$b")
        );
        assert_eq!(
            fields("function() { var thisone = 1; emit(this.a) }").as_deref(),
            Some("a")
        );
    }

    #[test]
    fn whatever_else_may_read_everything() {
        for source in [
            "function() { emit(this, 1) }",
            "function() { emit(this['a'], 1) }",
            "function() { helper.call(this) }",
            "function() { for (var k in this) emit(k, 1) }",
            "function() { emit(eval('th' + 'is').a, 1) }",
            "function() { this.f() }",
            "function() { this.f /* x */ () }",
            "function() { this.f`x` }",
            "function() { emit(this.hasOwnProperty('a'), 1) }",
            "function() { var {a} = this; emit(a, 1) }",
            "function() { emit(this /* x */ .a, 1) }",
            "function() { emit(this.\\u0061, 1) }",
            "() => emit(...[this].map(x => x.a))",
            "function() { new Function('return 1')() }",
        ] {
            assert_eq!(fields(source), None, "{source}");
        }
    }
}
