//! Privileges: actions on a resource, and what many of them allow together.

use bson::{RawArray, RawArrayBuf, RawBsonRef, RawDocument, RawDocumentBuf, cstr};

use crate::action::{Action, ActionSet};
use crate::field::{self, DefinitionError};
use crate::resource::{Resource, ResourcePattern};

/// Actions that are allowed on what a pattern covers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Privilege {
    pub resource: ResourcePattern,
    pub actions: ActionSet,
}

impl Privilege {
    /// Reads `{resource: {…}, actions: […]}`.
    ///
    /// # Errors
    /// A missing or ill-typed field, a resource that is none, actions that do not exist
    /// (all of them are named), or no action at all.
    pub fn parse(document: &RawDocument) -> Result<Privilege, DefinitionError> {
        let (mut resource, mut actions) = (None, None);
        for item in field::fields(document) {
            let (name, value) = item?;
            match name {
                "resource" => {
                    resource = Some(ResourcePattern::parse(field::document(name, value)?)?);
                }
                "actions" => {
                    let listed = value.as_array().ok_or_else(|| {
                        let text = "wrong type for 'actions' field, expected vector array";
                        DefinitionError::Invalid(text.to_owned())
                    })?;
                    actions = Some(parse_actions(listed)?);
                }
                _ => {}
            }
        }
        let privilege = Privilege {
            resource: resource.ok_or_else(|| field::missing("privilege", "resource"))?,
            actions: actions.unwrap_or(ActionSet::EMPTY),
        };
        if privilege.actions.is_empty() {
            return Err(DefinitionError::Resource(
                "missing actions field".to_owned(),
            ));
        }
        Ok(privilege)
    }

    pub fn to_document(&self) -> RawDocumentBuf {
        let mut actions = RawArrayBuf::new();
        for action in self.actions.iter() {
            actions.push(action.name());
        }
        let mut document = RawDocumentBuf::new();
        document.append(cstr!("resource"), self.resource.to_document());
        document.append(cstr!("actions"), actions);
        document
    }
}

fn parse_actions(array: &RawArray) -> Result<ActionSet, DefinitionError> {
    let mut actions = ActionSet::EMPTY;
    let mut unknown: Vec<&str> = Vec::new();
    for value in field::elements(array) {
        let name = field::string("actions", value?)?;
        match Action::from_name(name) {
            Some(action) => actions.insert(action),
            None => unknown.push(name),
        }
    }
    if unknown.is_empty() {
        Ok(actions)
    } else {
        Err(DefinitionError::Action(unknown.join(", ")))
    }
}

/// Privileges, one for each pattern, in the order in which the patterns came.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Privileges(Vec<Privilege>);

impl Privileges {
    /// Reads an array of privileges; those of one resource become one.
    ///
    /// # Errors
    /// As [`Privilege::parse`].
    pub fn parse(array: &RawArray) -> Result<Privileges, DefinitionError> {
        let mut privileges = Privileges::default();
        for value in field::elements(array) {
            let document = field::document("privileges", value?)?;
            privileges.add(Privilege::parse(document)?);
        }
        Ok(privileges)
    }

    pub fn to_array(&self) -> RawArrayBuf {
        let mut array = RawArrayBuf::new();
        for privilege in &self.0 {
            array.push(privilege.to_document());
        }
        array
    }

    pub fn iter(&self) -> impl Iterator<Item = &Privilege> {
        self.0.iter()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn add(&mut self, privilege: Privilege) {
        match self
            .0
            .iter_mut()
            .find(|own| own.resource == privilege.resource)
        {
            Some(own) => own.actions = own.actions.union(privilege.actions),
            None => self.0.push(privilege),
        }
    }

    pub fn add_all(&mut self, others: &Privileges) {
        for privilege in &others.0 {
            self.add(privilege.clone());
        }
    }

    /// Takes back actions that were given on exactly this pattern, as
    /// `revokePrivilegesFromRole` does; a pattern without an action is left out.
    pub fn remove(&mut self, revoked: &Privilege) {
        for own in &mut self.0 {
            if own.resource == revoked.resource {
                own.actions = own.actions.difference(revoked.actions);
            }
        }
        self.0.retain(|own| !own.actions.is_empty());
    }

    /// Whether the action may be done to the resource.
    pub fn allow(&self, action: Action, resource: Resource<'_>) -> bool {
        self.0
            .iter()
            .any(|own| own.actions.allows(action) && own.resource.covers(resource))
    }

    /// Whether some action of the set may be done to any resource of the database.
    pub fn allow_something_in(&self, database: &str, actions: ActionSet) -> bool {
        self.0.iter().any(|own| {
            let reaches = match &own.resource {
                ResourcePattern::AnyResource
                | ResourcePattern::CollectionName(_)
                | ResourcePattern::Buckets { database: None, .. } => true,
                ResourcePattern::Cluster => false,
                pattern @ ResourcePattern::AnyNormal => {
                    pattern.covers(Resource::Database(database))
                }
                pattern => pattern.database() == Some(database),
            };
            reaches && actions.iter().any(|action| own.actions.allows(action))
        })
    }
}

impl FromIterator<Privilege> for Privileges {
    fn from_iter<I: IntoIterator<Item = Privilege>>(given: I) -> Privileges {
        let mut privileges = Privileges::default();
        for privilege in given {
            privileges.add(privilege);
        }
        privileges
    }
}

/// The array in a field of the name, or none where the field is missing.
pub(crate) fn parse_field(
    name: &str,
    value: Option<RawBsonRef<'_>>,
) -> Result<Privileges, DefinitionError> {
    match value {
        Some(value) => Privileges::parse(field::array(name, value)?),
        None => Ok(Privileges::default()),
    }
}

#[cfg(test)]
mod tests {
    use bson::rawdoc;

    use super::*;

    fn privilege(document: RawDocumentBuf) -> Privilege {
        Privilege::parse(&document).expect("a privilege")
    }

    #[test]
    fn privileges_on_one_resource_become_one_and_can_be_taken_back() {
        let read = rawdoc! {
            "resource": { "db": "t", "collection": "c" },
            "actions": ["find", "collStats"],
        };
        let write = rawdoc! {
            "resource": { "db": "t", "collection": "c" },
            "actions": ["insert", "find"],
        };
        let mut all: Privileges = [privilege(read), privilege(write.clone())]
            .into_iter()
            .collect();
        assert_eq!(all.iter().count(), 1);
        let collection = Resource::Collection {
            database: "t",
            collection: "c",
        };
        assert!(all.allow(Action::Insert, collection) && all.allow(Action::CollStats, collection));
        assert!(!all.allow(Action::Update, collection));
        assert!(!all.allow(Action::Find, Resource::Database("t")));

        all.remove(&privilege(write));
        assert!(!all.allow(Action::Find, collection) && all.allow(Action::CollStats, collection));
        assert_eq!(
            all.to_array(),
            bson::rawbson!([{
                "resource": { "db": "t", "collection": "c" },
                "actions": ["collStats"],
            }])
            .as_raw_bson_ref()
            .as_array()
            .expect("an array")
            .to_owned()
        );
    }

    #[test]
    fn unknown_actions_are_all_named() {
        let document = rawdoc! {
            "resource": { "cluster": true },
            "actions": ["find", "fly", "swim"],
        };
        let error = Privilege::parse(&document).expect_err("no such actions");
        assert_eq!(error, DefinitionError::Action("fly, swim".to_owned()));
        let none = rawdoc! { "resource": { "cluster": true }, "actions": [] };
        Privilege::parse(&none).expect_err("no action");
        Privilege::parse(&rawdoc! { "actions": ["find"] }).expect_err("no resource");
    }

    #[test]
    fn something_in_a_database_is_reached_through_any_of_its_resources() {
        let find = ActionSet::of(&[Action::Find]);
        let reaches = |resource: RawDocumentBuf, database| {
            let mut given = Privileges::default();
            given.add(Privilege {
                resource: ResourcePattern::parse(&resource).expect("a pattern"),
                actions: find,
            });
            given.allow_something_in(database, find)
        };
        assert!(reaches(rawdoc! { "db": "t", "collection": "c" }, "t"));
        assert!(!reaches(rawdoc! { "db": "t", "collection": "c" }, "u"));
        assert!(reaches(rawdoc! { "db": "", "collection": "c" }, "u"));
        assert!(!reaches(rawdoc! { "db": "", "collection": "" }, "local"));
        assert!(!reaches(rawdoc! { "cluster": true }, "t"));
    }
}
