//! A collation as Unicode's collation algorithm with the data of a locale.

use icu_collator::options::{self, CaseLevel, CollatorOptions};
use icu_collator::preferences::{CollationCaseFirst, CollationNumericOrdering};
use icu_collator::provider::{
    Baked, CollationDiacriticsV1, CollationJamoV1, CollationMetadata, CollationMetadataV1,
    CollationReorderingV1, CollationRootV1, CollationSpecialPrimariesV1, CollationTailoringV1,
};
use icu_collator::{Collator, CollatorPreferences};
use icu_normalizer::provider::{
    Baked as BakedNormalizer, NormalizerNfdDataV1, NormalizerNfdTablesV1,
};
use icu_provider::{DataError, DataPayload, DataProvider, DataRequest, DataResponse};

use super::definition::{Alternate, CaseFirst, Collation, MaxVariable, Strength};
use super::locale;

/// `None`: there are no rules for the locale.
pub(super) fn of(collation: &Collation) -> Option<Collator> {
    let mut preferences = CollatorPreferences::from(&locale::find(&collation.locale)?);
    preferences.case_first = Some(match collation.case_first {
        CaseFirst::Upper => CollationCaseFirst::Upper,
        CaseFirst::Lower => CollationCaseFirst::Lower,
        CaseFirst::Off => CollationCaseFirst::False,
    });
    preferences.numeric_ordering = Some(match collation.numeric_ordering {
        true => CollationNumericOrdering::True,
        false => CollationNumericOrdering::False,
    });
    let mut options = CollatorOptions::default();
    options.strength = Some(match collation.strength {
        Strength::Primary => options::Strength::Primary,
        Strength::Secondary => options::Strength::Secondary,
        Strength::Tertiary => options::Strength::Tertiary,
        Strength::Quaternary => options::Strength::Quaternary,
        Strength::Identical => options::Strength::Identical,
    });
    options.alternate_handling = Some(match collation.alternate {
        Alternate::NonIgnorable => options::AlternateHandling::NonIgnorable,
        Alternate::Shifted => options::AlternateHandling::Shifted,
    });
    options.max_variable = Some(match collation.max_variable {
        MaxVariable::Punct => options::MaxVariable::Punctuation,
        MaxVariable::Space => options::MaxVariable::Space,
    });
    options.case_level = Some(match collation.case_level {
        true => CaseLevel::On,
        false => CaseLevel::Off,
    });
    let data = Data {
        backwards: collation.backwards,
    };
    Collator::try_new_unstable(&data, preferences, options).ok()
}

/// Whether the second level runs backwards, in the metadata of a locale.
const BACKWARDS: u32 = 1 << 7;

/// The compiled data. Only a locale's metadata says whether accents are compared from the end
/// (no option does), so that is set here to what the collation asks for.
struct Data {
    backwards: bool,
}

impl DataProvider<CollationMetadataV1> for Data {
    fn load(
        &self,
        request: DataRequest<'_>,
    ) -> Result<DataResponse<CollationMetadataV1>, DataError> {
        let response = DataProvider::<CollationMetadataV1>::load(&Baked, request)?;
        let known = response.payload.get().bits & !BACKWARDS;
        let bits = known | if self.backwards { BACKWARDS } else { 0 };
        Ok(DataResponse {
            metadata: response.metadata,
            payload: DataPayload::from_owned(CollationMetadata { bits }),
        })
    }
}

macro_rules! as_compiled {
    ($($marker:ty => $data:expr),* $(,)?) => {$(
        impl DataProvider<$marker> for Data {
            fn load(&self, request: DataRequest<'_>) -> Result<DataResponse<$marker>, DataError> {
                $data.load(request)
            }
        }
    )*};
}

as_compiled! {
    CollationSpecialPrimariesV1 => Baked,
    CollationRootV1 => Baked,
    CollationTailoringV1 => Baked,
    CollationDiacriticsV1 => Baked,
    CollationJamoV1 => Baked,
    CollationReorderingV1 => Baked,
    NormalizerNfdDataV1 => BakedNormalizer,
    NormalizerNfdTablesV1 => BakedNormalizer,
}
