//! Text in columns.

use super::say;

/// A table: a header and rows, each as many cells.
pub struct Table {
    rows: Vec<Vec<String>>,
    right: Vec<bool>,
}

impl Table {
    /// A table with these columns; those that begin with `>` are aligned to the right.
    pub fn new(header: &[&str]) -> Table {
        let right = header.iter().map(|title| title.starts_with('>')).collect();
        let titles = header
            .iter()
            .map(|title| title.trim_start_matches('>').to_owned())
            .collect();
        Table {
            rows: vec![titles],
            right,
        }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let cells: Vec<String> = cells.into_iter().collect();
        assert_eq!(
            cells.len(),
            self.right.len(),
            "a row has a cell for each column"
        );
        self.rows.push(cells);
    }

    /// Prints it, indented.
    pub fn print(&self) {
        for line in self.lines() {
            say(&format!("  {line}"));
        }
    }

    fn lines(&self) -> Vec<String> {
        let width = |column: usize| {
            let cells = self.rows.iter().map(|row| row[column].chars().count());
            cells.max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.right.len()).map(width).collect();
        let cell = |column: usize, text: &String| match self.right[column] {
            true => format!("{text:>width$}", width = widths[column]),
            false => format!("{text:<width$}", width = widths[column]),
        };
        let line = |row: &Vec<String>| {
            let cells: Vec<_> = row
                .iter()
                .enumerate()
                .map(|(at, text)| cell(at, text))
                .collect();
            cells.join("  ").trim_end().to_owned()
        };
        self.rows.iter().map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(&["name", ">price"]);
        table.row(["a".to_owned(), "10".to_owned()]);
        table.row(["longer".to_owned(), "9".to_owned()]);
        assert_eq!(
            table.lines(),
            ["name    price", "a          10", "longer      9"]
        );
    }
}
