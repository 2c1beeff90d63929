"""What each registered outcome is as a number per unit: {study: {key: function of the study's units}}."""

from audit.studies import arena, batch_composition, confidence, dose, mass, recovered, training_curves, value_gap

DEFINITIONS = {
    "arena": arena.OUTCOMES,
    "batch_composition": batch_composition.OUTCOMES,
    "batch_one_prompt": batch_composition.ONE_PROMPT,
    "confidence": confidence.OUTCOMES,
    "dose": dose.OUTCOMES,
    "dose_alphabets": dose.SHARING,
    "dose_dials": dose.DIALS,
    "dose_llm": dose.LANGUAGE_MODELS,
    "mass": mass.OUTCOMES,
    "recovered": recovered.OUTCOMES,
    "recovered_dials": recovered.DIALS,
    "recovered_members": recovered.MEMBERS,
    "training_curves": training_curves.OUTCOMES,
    "value_gap": value_gap.OUTCOMES,
}
