/**
 * Bytes that leave a stage by micro-batch size (FlexPipe Eq. 3):
 *
 *   s_a(S, b) = s_a_base(S) · (1 + α log(b / b_base))
 *
 * α comes of measurements by linear regression. A logarithm fits activations that are compressed. Plain hidden
 * states grow with the number of rows, and no α makes Eq. 3 a line, so that the fit compares both laws and says
 * which is closer.
 */
export interface ActivationLaw {
  /** `log`: Eq. 3. `linear`: s_a_base · b / b_base. */
  law: 'log' | 'linear';
  /** Of Eq. 3, whichever law is closer. */
  alpha: number;
  base_rows: number;
  /** Root mean square of the relative error of the law on the measurements; 0 where there are none. */
  error: number;
}

export interface MeasuredActivation {
  rows: number;
  /** Over the bytes at `base_rows`. */
  ratio: number;
}

/** Without measurements beside the base the rows are taken to be uncompressed. */
export function fitActivations(base_rows: number, measured: readonly MeasuredActivation[]): ActivationLaw {
  let xy = 0;
  let xx = 0;
  for (const { rows, ratio } of measured) {
    const x = Math.log(rows / base_rows);
    xy += x * (ratio - 1);
    xx += x * x;
  }
  if (xx === 0) return { law: 'linear', alpha: 0, base_rows, error: 0 };
  const laws = (['log', 'linear'] as const).map((law): ActivationLaw => {
    const fitted: ActivationLaw = { law, alpha: xy / xx, base_rows, error: 0 };
    const squares = measured.reduce(
      (sum, { rows, ratio }) => sum + (growth(fitted, rows) / ratio - 1) ** 2,
      0,
    );
    return { ...fitted, error: Math.sqrt(squares / measured.length) };
  });
  return laws[0]!.error < laws[1]!.error ? laws[0]! : laws[1]!;
}

/** Bytes at `rows`, of activations that have `base_bytes` at the law's base. */
export function activationSize_bytes(base_bytes: number, law: ActivationLaw, rows: number): number {
  return base_bytes * Math.max(0, growth(law, rows));
}

function growth({ law, alpha, base_rows }: ActivationLaw, rows: number): number {
  return law === 'linear' ? rows / base_rows : 1 + alpha * Math.log(rows / base_rows);
}
