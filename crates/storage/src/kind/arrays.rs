//! On which paths of an index documents have arrays.

use std::collections::BTreeSet;

use banyan_document::path::Path;

/// Beyond so many paths every path counts as one: an index over all fields could have any number.
const PATHS_MAX: usize = 1000;

/// The paths at which some document of an index has, or had, an array.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ArrayPaths {
    paths: BTreeSet<Box<str>>,
    everywhere: bool,
}

impl ArrayPaths {
    pub fn of(paths: &BTreeSet<Box<str>>) -> ArrayPaths {
        let mut arrays = ArrayPaths::default();
        arrays.add(paths);
        arrays
    }

    /// Any path may have them.
    pub(crate) fn everywhere() -> ArrayPaths {
        ArrayPaths {
            paths: BTreeSet::new(),
            everywhere: true,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.paths.is_empty() && !self.everywhere
    }

    /// `None`: everywhere.
    pub(crate) fn paths(&self) -> Option<impl Iterator<Item = &str>> {
        (!self.everywhere).then(|| self.paths.iter().map(|path| &**path))
    }

    /// Whether these are known.
    pub fn contains(&self, paths: &BTreeSet<Box<str>>) -> bool {
        self.everywhere || paths.is_subset(&self.paths)
    }

    pub fn add(&mut self, paths: &BTreeSet<Box<str>>) {
        if self.everywhere {
            return;
        }
        self.paths.extend(paths.iter().cloned());
        if self.paths.len() > PATHS_MAX {
            *self = ArrayPaths::everywhere();
        }
    }

    /// After how many parts of a path there are arrays.
    pub fn depths(&self, path: &Path) -> Vec<usize> {
        if self.is_empty() {
            return Vec::new();
        }
        let parts = path.parts();
        let is_array = |depth: &usize| self.are_at(&parts[..*depth].join("."));
        (1..=parts.len()).filter(is_array).collect()
    }

    /// Whether the values at a path may be arrays.
    pub(crate) fn are_at(&self, path: &str) -> bool {
        self.everywhere || self.paths.contains(path)
    }

    /// Whether the values of a path may lie in arrays or be some.
    pub fn are_on(&self, path: &Path) -> bool {
        !self.depths(path).is_empty()
    }

    /// Whether both paths may lead through one array. Its items then hold values of both, and
    /// which of them belong together cannot be told of each alone.
    pub fn are_shared(&self, one: &Path, other: &Path) -> bool {
        let parts = one.parts().iter().zip(other.parts());
        let common = parts.take_while(|(one, other)| one == other).count();
        self.depths(one).iter().any(|depth| *depth <= common)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrays(paths: &[&str]) -> ArrayPaths {
        ArrayPaths::of(&paths.iter().map(|path| Box::from(*path)).collect())
    }

    fn path(text: &str) -> Path {
        Path::parse(text).unwrap()
    }

    #[test]
    fn arrays_are_known_by_path() {
        let arrays = arrays(&["a", "b.c"]);
        assert_eq!(arrays.depths(&path("a.b.c")), [1]);
        assert_eq!(arrays.depths(&path("b.c")), [2]);
        assert!(arrays.are_on(&path("b.c.d")));
        assert!(!arrays.are_on(&path("b.d")));
        assert!(arrays.are_shared(&path("a.x"), &path("a.y")));
        assert!(!arrays.are_shared(&path("b.c"), &path("b.d")));
        assert!(arrays.are_shared(&path("b.c.x"), &path("b.c")));
    }

    #[test]
    fn too_many_paths_are_all_of_them() {
        let mut many = ArrayPaths::default();
        for n in 0..PATHS_MAX {
            many.add(&BTreeSet::from([format!("f{n}").into_boxed_str()]));
        }
        assert!(!many.are_on(&path("other")));
        many.add(&BTreeSet::from(["one more".into()]));
        assert!(many.are_on(&path("other")));
        assert!(many.contains(&BTreeSet::from(["any".into()])));
    }
}
