/** What configurations and headers leave to the code of a model's family, by `model_type` or GGUF architecture. */

/** Up and down matrices with an activation between; all others have a gate too. */
const ungated =
  /^(gpt2|gpt_?neox|gpt_?j|gpt_bigcode|codegen|opt|falcon|bloom|phi|phi2|phimsft|mpt|starcoder2?|nemotron)$/;

export function gatedFeedForward(type: string): boolean {
  return !ungated.test(type);
}

/** Families whose embedding serves as output matrix unless their config says otherwise. */
export function tiedByDefault(type: string): boolean {
  return /^(gemma|cohere|gpt2$|opt$|bloom$|falcon$|mpt$|gpt_bigcode$|starcoder2$)/.test(type);
}

/** Layers with a sliding window among `n_layer`: one in so many attends to all; every layer slides elsewhere. */
export function slidingLayers(type: string, n_layer: number, pattern?: number): number {
  const family = /^(gemma2|gpt[-_]oss)/.test(type)
    ? 2
    : type.startsWith('gemma3n')
      ? 5
      : type.startsWith('gemma3')
        ? 6
        : /^(cohere2|command-r7b|exaone4|llama4|olmo3)/.test(type)
          ? 4
          : undefined;
  const every = pattern ?? family;
  return every === undefined ? n_layer : n_layer - Math.floor(n_layer / every);
}
