//! Refuses a JSON schema whose objects have too many properties: estimates the time to match them,
//! which grows with the square of their number in each object.
//!
//! Each property is optional, so the matcher considers it together with all later ones. Joined
//! schemas, also by references, form an object with the properties of all parts, once for each
//! alternative. An object with a limit on its number of properties counts once for each of them.

use serde_json::{Map, Value};

use super::schema::child_schemas;

/// Maximum steps: an object of 500 properties, which takes a twentieth of a second. The library
/// cannot match a text of one with many more.
const STEPS_MAX: u64 = 250_000;

/// Maximum parts of joined schemas to visit, because references can repeat them.
const PARTS_MAX: u32 = 20_000;

/// Maximum nesting of parts.
const DEPTH_MAX: usize = 64;

/// The state of a count.
struct Count<'a> {
    root: &'a Value,
    parts: u32,
    steps: u64,
}

/// Joined schemas: the properties of the largest alternative, and the number of alternatives.
#[derive(Clone, Copy)]
struct PropertyUnion {
    properties: u64,
    alternatives: u64,
}

/// Checks the properties of a schema.
///
/// # Errors
/// The reason for the refusal.
pub(super) fn check_properties(schema: &Value) -> Result<(), String> {
    let mut count = Count {
        root: schema,
        parts: 0,
        steps: 0,
    };
    count.add(schema)
}

impl Count<'_> {
    /// Counts the objects in a schema, nested ones included.
    fn add(&mut self, schema: &Value) -> Result<(), String> {
        if let Value::Object(fields) = schema {
            self.add_object(schema, fields)?;
        }
        child_schemas(schema).try_for_each(|child| self.add(child))
    }

    fn add_object(&mut self, schema: &Value, fields: &Map<String, Value>) -> Result<(), String> {
        let joins = ["allOf", "anyOf", "oneOf", "$ref"];
        let joined = joins.iter().filter(|name| fields.contains_key(**name));
        let of_all = fields.get("allOf").and_then(Value::as_array);
        let is_joined = joined.count() > 1 || of_all.is_some_and(|all| all.len() > 1);
        if own_property_count(fields) == 0 && !is_joined {
            return Ok(());
        }
        let PropertyUnion {
            properties,
            alternatives,
        } = self.join_schemas(schema, DEPTH_MAX)?;
        let is_counted = ["minProperties", "maxProperties"];
        let times = match is_counted.iter().any(|name| fields.contains_key(*name)) {
            true => properties,
            false => 1,
        };
        let steps = properties.saturating_mul(properties).saturating_mul(times);
        self.steps = self
            .steps
            .saturating_add(steps.saturating_mul(alternatives));
        if self.steps > STEPS_MAX {
            return Err(format!(
                "its objects have too many properties: {properties} of one object, joined in \
                 {alternatives} ways; at most {} of one are followed, or fewer of several",
                STEPS_MAX.isqrt()
            ));
        }
        Ok(())
    }

    /// Returns the union of a schema and the schemas that it joins.
    fn join_schemas(&mut self, schema: &Value, depth: usize) -> Result<PropertyUnion, String> {
        self.parts += 1;
        if self.parts > PARTS_MAX || depth == 0 {
            return Err(format!(
                "what it joins has more than {PARTS_MAX} parts, or parts in over {DEPTH_MAX} parts"
            ));
        }
        let mut all = PropertyUnion {
            properties: 0,
            alternatives: 1,
        };
        let Value::Object(fields) = schema else {
            return Ok(all);
        };
        all.properties = own_property_count(fields);
        let list = |name: &str| fields.get(name).and_then(Value::as_array);
        let reference = fields.get("$ref").and_then(Value::as_str);
        let root = self.root;
        let named = reference.and_then(|it| root.pointer(it.strip_prefix('#')?));
        for part in list("allOf").into_iter().flatten().chain(named) {
            let part = self.join_schemas(part, depth - 1)?;
            all.properties = all.properties.saturating_add(part.properties);
            all.alternatives = all.alternatives.saturating_mul(part.alternatives);
        }
        for name in ["anyOf", "oneOf"] {
            let (mut most, mut count) = (0, 0_u64);
            for part in list(name).into_iter().flatten() {
                let part = self.join_schemas(part, depth - 1)?;
                most = most.max(part.properties);
                count = count.saturating_add(part.alternatives);
            }
            all.properties = all.properties.saturating_add(most);
            all.alternatives = all.alternatives.saturating_mul(count.max(1));
        }
        Ok(all)
    }
}

/// Returns the number of properties that an object names itself.
fn own_property_count(fields: &Map<String, Value>) -> u64 {
    let named = fields.get("properties").and_then(Value::as_object);
    let required = fields.get("required").and_then(Value::as_array);
    let names = required.into_iter().flatten().filter_map(Value::as_str);
    let others = names.filter(|name| named.is_none_or(|named| !named.contains_key(*name)));
    named.map_or(0, Map::len) as u64 + others.count() as u64
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(count: usize) -> Value {
        let names = (0..count).map(|at| (format!("p{at}"), json!({ "type": "string" })));
        json!({ "type": "object", "properties": names.collect::<Map<_, _>>() })
    }

    #[test]
    fn objects_are_counted_by_themselves_and_joined_ones_together() {
        let list = |count: usize, each: usize| json!({ "anyOf": vec![object(each); count] });
        assert!(check_properties(&object(500)).is_ok() && check_properties(&object(501)).is_err());
        assert!(
            check_properties(&list(90, 50)).is_ok() && check_properties(&list(101, 50)).is_err()
        );
        assert!(check_properties(&json!({ "allOf": vec![object(40); 5] })).is_ok());
        assert!(check_properties(&json!({ "allOf": vec![object(100); 5] })).is_err());
        let mut counted = object(70);
        counted["minProperties"] = json!(1);
        assert!(check_properties(&counted).is_err());
        // Ways to join them multiply.
        let pair = json!({ "anyOf": [object(9), object(9)] });
        let many = json!({ "allOf": vec![pair; 9] });
        assert!(check_properties(&many).is_err());
    }

    #[test]
    fn references_are_followed_and_end() {
        let halves = |count: usize| {
            let pair = |at: usize| json!({ "$ref": format!("#/$defs/d{at}") });
            let each = (1..count).map(|at| {
                (
                    format!("d{at}"),
                    json!({ "allOf": [pair(at - 1), pair(at - 1)] }),
                )
            });
            let mut all: Map<String, Value> = each.collect();
            all.insert("d0".to_owned(), object(2));
            json!({ "$ref": format!("#/$defs/d{}", count - 1), "$defs": all })
        };
        assert!(check_properties(&halves(4)).is_ok());
        assert!(check_properties(&halves(40)).is_err());
        let around = json!({ "allOf": [{ "$ref": "#" }, object(1)] });
        assert!(check_properties(&around).is_err());
        // A list of its own kind is no joining.
        let mut list = object(3);
        list["properties"]["next"] = json!({ "$ref": "#" });
        assert!(check_properties(&list).is_ok());
    }
}
