/**
 * `inverse` := `matrix`⁻¹, both size × size by rows; `matrix` is destroyed. Gauss–Jordan with row pivots: the
 * matrices here are tiny and made anew from whole numbers each time, so that errors do not add up.
 * @returns false for a singular matrix; `inverse` is then of no use
 */
export function invert(matrix: Float64Array, inverse: Float64Array, size: number): boolean {
  inverse.fill(0);
  for (let i = 0; i < size; i++) inverse[i * size + i] = 1;
  for (let column = 0; column < size; column++) {
    let pivot = column;
    for (let row = column + 1; row < size; row++)
      if (Math.abs(matrix[row * size + column]!) > Math.abs(matrix[pivot * size + column]!)) pivot = row;
    const divisor = matrix[pivot * size + column]!;
    if (Math.abs(divisor) < 1e-12) return false;
    if (pivot !== column) {
      for (let k = 0; k < size; k++) {
        swap(matrix, pivot * size + k, column * size + k);
        swap(inverse, pivot * size + k, column * size + k);
      }
    }
    for (let k = 0; k < size; k++) {
      matrix[column * size + k]! /= divisor;
      inverse[column * size + k]! /= divisor;
    }
    for (let row = 0; row < size; row++) {
      const factor = matrix[row * size + column]!;
      if (row === column || factor === 0) continue;
      for (let k = 0; k < size; k++) {
        matrix[row * size + k]! -= factor * matrix[column * size + k]!;
        inverse[row * size + k]! -= factor * inverse[column * size + k]!;
      }
    }
  }
  return true;
}

function swap(array: Float64Array, a: number, b: number): void {
  const held = array[a]!;
  array[a] = array[b]!;
  array[b] = held;
}
