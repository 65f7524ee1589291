// Every string comes from the `text` object of the data; `{name}` is filled from `values`.

export function makeWords(text) {
  const words = (key, values) => {
    const template = text[key];
    if (template === undefined) return key;
    return values ? fill(template, values) : template;
  };
  words.has = (key) => text[key] !== undefined;
  // One of `key.one` and `key.other`, by `values[by]`.
  words.plural = (key, number, values) => words(`${key}.${number === 1 ? "one" : "other"}`, values);
  return words;
}

export function fill(template, values) {
  return template.replace(/\{(\w+)\}/g, (whole, name) => {
    const value = values[name];
    return value === undefined || value === null ? "?" : String(value);
  });
}
