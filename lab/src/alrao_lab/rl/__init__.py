"""Reinforcement learning: Pendulum and LunarLander by deep Q-learning. Needs the extra ``rl``."""
