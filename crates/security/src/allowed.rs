//! Privileges arranged by what they are about: a check takes about as long however many there are.

use crate::action::{Action, ActionSet};
use crate::privilege::{Privilege, Privileges};
use crate::resource::{self, Resource, ResourcePattern};

/// The same decisions as [`Privileges::allow`].
#[derive(Clone, Debug, Default)]
pub struct Allowed {
    anything: ActionSet,
    cluster: ActionSet,
    normal: ActionSet,
    /// By name, in order.
    databases: Vec<(String, ActionSet)>,
    /// Of all databases, by name, in order.
    names: Vec<(String, ActionSet)>,
    /// By the names of collection and database, in order.
    collections: Vec<((String, String), ActionSet)>,
    /// Few have any.
    buckets: Vec<Privilege>,
}

impl Allowed {
    pub fn new(privileges: &Privileges) -> Allowed {
        let mut allowed = Allowed::default();
        // There is one privilege for each pattern.
        for privilege in privileges.iter() {
            let actions = privilege.actions;
            match &privilege.resource {
                ResourcePattern::AnyResource => allowed.anything = actions,
                ResourcePattern::Cluster => allowed.cluster = actions,
                ResourcePattern::AnyNormal => allowed.normal = actions,
                ResourcePattern::Database(name) => allowed.databases.push((name.clone(), actions)),
                ResourcePattern::CollectionName(name) => {
                    allowed.names.push((name.clone(), actions));
                }
                ResourcePattern::Collection {
                    database,
                    collection,
                } => {
                    let names = (collection.clone(), database.clone());
                    allowed.collections.push((names, actions));
                }
                ResourcePattern::Buckets { .. } => allowed.buckets.push(privilege.clone()),
            }
        }
        allowed.databases.sort_by(|a, b| a.0.cmp(&b.0));
        allowed.names.sort_by(|a, b| a.0.cmp(&b.0));
        allowed.collections.sort_by(|a, b| a.0.cmp(&b.0));
        allowed
    }

    /// Whether the action may be done to the resource.
    pub fn allow(&self, action: Action, resource: Resource<'_>) -> bool {
        if self.anything.allows(action) {
            return true;
        }
        match resource {
            Resource::Cluster => self.cluster.allows(action),
            Resource::Database(name) => self.allow_database(action, name),
            Resource::Collection {
                database,
                collection,
            } => {
                (!resource::is_system(database, collection)
                    && self.allow_database(action, database))
                    || named(&self.names, collection).allows(action)
                    || self.allow_collection(action, database, collection)
                    || self
                        .buckets
                        .iter()
                        .any(|own| own.actions.allows(action) && own.resource.covers(resource))
            }
        }
    }

    fn allow_database(&self, action: Action, name: &str) -> bool {
        (self.normal.allows(action) && resource::is_normal_database(name))
            || named(&self.databases, name).allows(action)
    }

    fn allow_collection(&self, action: Action, database: &str, collection: &str) -> bool {
        let found = self.collections.binary_search_by(|((name, within), _)| {
            (name.as_str(), within.as_str()).cmp(&(collection, database))
        });
        found.is_ok_and(|at| self.collections[at].1.allows(action))
    }
}

fn named(sorted: &[(String, ActionSet)], name: &str) -> ActionSet {
    let found = sorted.binary_search_by(|(own, _)| own.as_str().cmp(name));
    found.map_or(ActionSet::EMPTY, |at| sorted[at].1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_decision_is_that_of_the_privileges() {
        let named = str::to_owned;
        let patterns = [
            ResourcePattern::AnyResource,
            ResourcePattern::Cluster,
            ResourcePattern::AnyNormal,
            ResourcePattern::Database(named("t")),
            ResourcePattern::Database(named("local")),
            ResourcePattern::CollectionName(named("c")),
            ResourcePattern::CollectionName(named("system.js")),
            ResourcePattern::Collection {
                database: named("t"),
                collection: named("d"),
            },
            ResourcePattern::Collection {
                database: named("u"),
                collection: named("d"),
            },
            ResourcePattern::Collection {
                database: named("u"),
                collection: named("system.users"),
            },
            ResourcePattern::Buckets {
                database: None,
                collection: Some(named("c")),
            },
            ResourcePattern::Buckets {
                database: Some(named("t")),
                collection: None,
            },
        ];
        let databases = ["t", "u", "local", "config", "admin"];
        let collections = [
            "c",
            "d",
            "system.js",
            "system.users",
            "system.buckets.c",
            "system.buckets.d",
            "replset.minvalid",
        ];
        let mut resources = vec![Resource::Cluster];
        resources.extend(databases.map(Resource::Database));
        for database in databases {
            resources.extend(collections.map(|collection| Resource::Collection {
                database,
                collection,
            }));
        }
        let actions = [Action::Find, Action::Insert];
        // Every pair of patterns, the one with another action.
        for first in &patterns {
            for second in &patterns {
                let privileges: Privileges = [(first, actions[0]), (second, actions[1])]
                    .into_iter()
                    .map(|(resource, action)| Privilege {
                        resource: resource.clone(),
                        actions: ActionSet::of(&[action]),
                    })
                    .collect();
                let allowed = Allowed::new(&privileges);
                for resource in &resources {
                    for action in actions {
                        let expected = privileges.allow(action, *resource);
                        let found = allowed.allow(action, *resource);
                        assert_eq!(found, expected, "{privileges:?}: {action:?} {resource:?}");
                    }
                }
            }
        }
        let any = ActionSet::of(&[Action::AnyAction]);
        let all: Privileges = patterns
            .iter()
            .map(|resource| Privilege {
                resource: resource.clone(),
                actions: any,
            })
            .skip(3)
            .collect();
        let allowed = Allowed::new(&all);
        for resource in resources {
            let expected = all.allow(Action::Find, resource);
            assert_eq!(allowed.allow(Action::Find, resource), expected);
        }
    }
}
